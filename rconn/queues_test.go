package rconn_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// The tests here hold completions back, to show that each of four budgets is refilled by
// its own event.

func TestSendSlotsAreFreedByTheirOwnCompletionsOnly(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		cfg := &rconn.Config{SendQueue: 16, KeepAlive: -1}
		c, s := v.connect(t, cfg, cfg)
		v.endpoint(c).HoldSends(true)
		// The peer reads and answers everything; no send of this end completes.
		sent := started(func() error { return pattern(0).send(c, 0, 1<<20, 1000, random(t, 1)) })
		got := make(chan int, 1)
		go func() {
			n, err := pattern(0).receive(s, 0, 1000, random(t, 2))
			require.Equal(t, io.EOF, err)
			got <- n
		}()
		for i := range 100 { // answers, which free no slots
			_, err := s.Write([]byte{byte(i)})
			require.NoError(t, err)
			v.parked()
		}
		require.LessOrEqual(t, c.Link().WorkRequests, uint64(16))
		v.endpoint(c).HoldSends(false)
		require.NoError(t, <-sent)
		require.NoError(t, c.CloseWrite())
		require.Equal(t, 1<<20, <-got)
	})
}

// The device may read staging memory until the request has completed. On a link with a
// latency sim reads it on arrival, so a byte that was overwritten too early arrives wrong.
// Here each completion is held back as long as possible.
func TestStagingMemoryIsNotReusedTooEarly(t *testing.T) {
	for seed := range uint64(10) {
		link := sim.Link{Latency: time.Millisecond, Bandwidth: 10 << 20, Jitter: 20 * time.Millisecond, Seed: seed, Inline: -1}
		inVirtualTime(t, link, func(t *testing.T, v simVenue) {
			c, s := v.connect(t, &rconn.Config{SendBuffer: 4 << 10, RecvBuffer: 4 << 10}, nil)
			atOnce(t, func() error {
				if err := pattern(seed).send(c, 0, 200_000, 3000, rand.New(rand.NewPCG(seed, 1))); err != nil {
					return err
				}
				return c.Close()
			}, func() error {
				n, err := pattern(seed).receive(s, 0, 3000, rand.New(rand.NewPCG(seed, 2)))
				if n != 200_000 || err != io.EOF {
					return fmt.Errorf("received %d bytes, then %v", n, err)
				}
				return nil
			})
		})
	}
}

// In whatever order sends and receives complete, and however long some are held back,
// nothing is lost and each message finds a receive.
func TestCompletionsInAnyOrder(t *testing.T) {
	for seed := range uint64(30) {
		inVirtualTime(t, sim.Link{Latency: time.Duration(seed%3) * time.Millisecond, Jitter: 5 * time.Millisecond, Seed: seed}, func(t *testing.T, v simVenue) {
			shape := shapes[seed%uint64(len(shapes))]
			c, s := v.connect(t, shape.dialer, shape.listener)
			over := make(chan struct{})
			held := started(func() error {
				ends := []*sim.Endpoint{v.endpoint(c), v.endpoint(s)}
				r := rand.New(rand.NewPCG(seed, 9))
				for {
					e := ends[r.IntN(2)]
					hold, d := e.HoldSends, time.Duration(r.IntN(int(20*time.Millisecond)))
					if r.IntN(2) == 0 {
						hold = e.HoldReceives
					}
					hold(true)
					time.Sleep(d)
					hold(false)
					select {
					case <-over:
						return nil
					default:
					}
				}
			})
			const total = 100_000
			half := func(c *rconn.Conn, out, in pattern) func() error {
				return func() error {
					sent := started(func() error {
						if err := out.send(c, 0, total, 5000, rand.New(rand.NewPCG(seed, uint64(out)))); err != nil {
							return err
						}
						return c.CloseWrite()
					})
					n, err := in.receive(c, 0, 5000, rand.New(rand.NewPCG(seed, uint64(in)+2)))
					if n != total || err != io.EOF {
						return fmt.Errorf("seed %d, %s: received %d bytes, then %v", seed, shape.name, n, err)
					}
					if err := <-sent; err != nil {
						return err
					}
					return c.Close()
				}
			}
			atOnce(t, half(c, 0, 1), half(s, 1, 0))
			close(over)
			<-held
			requireRareCredits(t, c, shape.dialer)
			requireRareCredits(t, s, shape.listener)
		})
	}
}

// If a peer reads nothing, data waits and control messages do not: FIN, FINACK and credits
// go both ways past the data.
func TestControlMessagesPassBlockedData(t *testing.T) {
	for _, link := range []sim.Link{{}, wan, far} {
		inVirtualTime(t, link, func(t *testing.T, v simVenue) {
			c, s := v.connect(t, tight, tight)
			_, wrote := v.blockedWrite(c) // fills the ring of s, which does not read
			atOnce(t, func() error {      // while data of s arrives, for which c sends credits
				if err := pattern(5).send(s, 0, 300_000, 3000, rand.New(rand.NewPCG(1, 1))); err != nil {
					return err
				}
				return s.CloseWrite()
			}, func() error {
				n, err := pattern(5).receive(c, 0, 3000, rand.New(rand.NewPCG(2, 2)))
				if n != 300_000 || err != io.EOF {
					return fmt.Errorf("received %d bytes, then %v", n, err)
				}
				return nil
			})
			require.NoError(t, c.Close(), "FIN goes past them too")
			require.Error(t, <-wrote)
		})
	}
}

// Small Writes leave at once, as with TCP_NODELAY, until a part of the send queue is under way. The
// others leave together when those have arrived.
func TestWriteHeldBackGoesWhenTheQueueIsIdle(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		read := func(n int) time.Duration {
			start := time.Now()
			_, err := io.ReadFull(s, make([]byte, n))
			require.NoError(t, err)
			return time.Since(start)
		}
		write := func(n int) {
			for range n {
				_, err := c.Write([]byte("x"))
				require.NoError(t, err)
			}
		}
		write(10)
		require.Less(t, read(10), 2*wan.Latency, "they have waited for nothing")
		write(1000)
		require.LessOrEqual(t, read(1000), 4*wan.Latency)
		require.Less(t, c.Stats().MessagesSent, uint64(100), "many small Writes are few work requests")
	})
}

func TestMemoryIsNotTouchedAfterClose(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		for range 20 {
			c, s := v.connect(t, tight, nil)
			_, err := s.Write(make([]byte, 4000))
			require.NoError(t, err)
			read := started(func() error {
				b := make([]byte, 16)
				for {
					n, err := c.Read(b)
					for _, got := range b[:n] {
						if got != 0 { // it may be sim.Poison
							return fmt.Errorf("read %#x", got)
						}
					}
					if err != nil {
						return nil
					}
				}
			})
			require.NoError(t, s.SetLinger(0))
			require.NoError(t, s.Close())
			_ = c.Close() // the peer may have closed first
			require.NoError(t, <-read)
		}
	})
}
