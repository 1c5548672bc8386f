package link

import (
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/direct"
)

// A stream of small Writes is faster than a peer that takes each by itself, on a
// fabric whose sends complete whether the peer takes them or not: what is written
// once the peer owes a credit goes with it, and arrives in order.
func TestLittleThatThePeerIsSlowToTakeIsGathered(t *testing.T) {
	cfg := testConfig
	cfg.Shared, cfg.Idle = false, 0
	cfg.Addresses = new(Addresses)
	active, passive := direct.Pair()
	accepted := make(chan *Stream, 1)
	go func() {
		_, s, _ := Accept(context.Background(), passive, cfg)
		accepted <- s
	}()
	c, err := Dial(context.Background(), active, cfg)
	require.NoError(t, err)
	s := <-accepted

	text := make([]byte, 200*64)
	for i := range text {
		text[i] = byte(rand.Uint32())
	}
	s.link.mu.Lock() // the peer takes nothing
	for part := range slices.Chunk(text, 64) {
		require.NoError(t, writeAll(c, part))
	}
	sent := c.Stats().MessagesSent
	s.link.mu.Unlock()
	require.LessOrEqual(t, sent, uint64(cfg.RecvQueue/4+1))

	got := make([]byte, len(text))
	_, err = io.ReadFull(reader{s}, got)
	require.NoError(t, err)
	require.Equal(t, text, got)
	require.LessOrEqual(t, c.Stats().MessagesSent, sent+1)
	require.NoError(t, c.Close(time.Second))
	require.NoError(t, s.Close(time.Second))
}
