package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/hang"
)

// Streams come and go as fast as several goroutines make them, end in every way
// with bytes of either side unread, and have the numbers and the rings of others
// at once. A stream beside them is read slowly. No byte is of another stream.
func TestNumbersAndRingsAreUsedAgainAtOnce(t *testing.T) {
	fabrics := map[string]fabric.Fabric{
		"sim":        sim.New(sim.Link{}),
		"sim polled": sim.New(sim.Link{Spin: 100}),
		"sim far":    sim.New(sim.Link{Latency: 20 * time.Microsecond, Jitter: 50 * time.Microsecond, Seed: 7}),
	}
	if f, err := shm.Fabric(); !errors.Is(err, errors.ErrUnsupported) {
		require.NoError(t, err)
		fabrics["shm"] = f
	}
	for name, f := range fabrics {
		t.Run(name, func(t *testing.T) {
			cfg := limitedTo(budget.Unlimited) // of its own, for its links end after the test
			cfg.Addresses, cfg.Handshake = new(Addresses), hang.After
			l := serveEcho(t, f, cfg)
			defer l.Close()
			p := &dialingProcess{n: f, to: l.Addr(), cfg: cfg}
			p.cfg.Addresses = new(Addresses)
			slow, err := p.dial()
			require.NoError(t, err)
			slowly := make(chan error, 1)
			go func() { slowly <- readSlowly(slow) }()
			var all sync.WaitGroup
			for g := range 8 {
				all.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 0))
					for i := range 100 {
						if err := p.useAndLeave(r); err != nil {
							t.Errorf("goroutine %d, stream %d: %v", g, i, err)
						}
					}
				})
			}
			all.Wait()
			require.NoError(t, <-slowly)
			require.NoError(t, slow.Close(time.Second))
		})
	}
}

// readSlowly has a stream full in both directions, and reads a little at a time.
func readSlowly(s *Stream) error {
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * 7 >> 4)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- writeAll(s, sent) }()
	got := make([]byte, len(sent))
	for n := 0; n < len(got); n += 16 << 10 {
		if _, err := io.ReadFull(reader{s}, got[n:n+16<<10]); err != nil {
			return fmt.Errorf("after %d bytes: %w", n, err)
		}
		time.Sleep(time.Millisecond)
	}
	if !bytes.Equal(got, sent) {
		return errors.New("what was read slowly is something else")
	}
	return <-wrote
}

// useAndLeave has bytes come back on a stream, and leaves more or less of them
// unread or even unsent.
func (p *dialingProcess) useAndLeave(r *rand.Rand) error {
	s, err := p.dial()
	if err != nil {
		return err
	}
	linger := time.Duration(r.IntN(2)) * 10 * time.Second
	defer s.Close(linger)
	sent := bytes.Repeat([]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}, 1+r.IntN(20_000))
	wrote := make(chan struct{})
	until := deadline.New()
	go func() {
		defer close(wrote)
		_, _ = s.Write(sent, until)
	}()
	defer func() {
		until.Set(time.Now())
		<-wrote
	}()
	got := make([]byte, r.IntN(len(sent)+1))
	if _, err := io.ReadFull(reader{s}, got); err != nil {
		return err
	}
	if !bytes.Equal(got, sent[:len(got)]) {
		return errors.New("what comes back is something else")
	}
	return nil
}
