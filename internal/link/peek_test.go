package link

import (
	"bufio"
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// The peer has gone on to another ring: what is in the one before is all that will be
// there, and is not touched before it is taken.
func TestPeekEndsWhereAnotherRingBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		const before, behind = 10 << 10, 5 << 10
		require.NoError(t, writeAll(c, bytes.Repeat([]byte{1}, before)))
		held, err := s.Peek(before, unlimited())
		require.NoError(t, err)

		s.link.mu.Lock()
		s.grow(64 << 10)
		s.changed()
		s.link.pollAndSend()
		s.link.watchNow()
		s.link.mu.Unlock()
		synctest.Wait()
		require.Equal(t, 64<<10, s.ringSize(), "the peer has not taken the ring")
		p, err := s.Peek(before+1, unlimited())
		require.Equal(t, bufio.ErrBufferFull, err)
		require.Len(t, p, before)

		require.NoError(t, writeAll(c, bytes.Repeat([]byte{2}, behind)))
		synctest.Wait()
		require.Equal(t, before, s.Buffered())
		require.Equal(t, bytes.Repeat([]byte{1}, before), held)
		_, err = s.Discard(before, unlimited())
		require.NoError(t, err)
		p, err = s.Peek(behind, unlimited())
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{2}, behind), p)

		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
	})
}
