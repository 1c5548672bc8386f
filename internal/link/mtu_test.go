package link

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// losesLonger has a network lose messages of more than so many bytes: a path on which one
// end has jumbo frames, and the other or a switch has not.
func losesLonger(n *sim.Network, most int) {
	n.SetFaults(sim.Faults{Send: func(_ *sim.Endpoint, wr *fabric.WorkRequest) fabric.Status {
		if wr.Len() > most {
			return fabric.RetryExceeded
		}
		return fabric.OK
	}})
}

// TestALinkWhosePathLosesLongMessagesEnds has each move succeed, and the message that was
// lost be lost again. Short ones arrive in the other direction meanwhile.
func TestALinkWhosePathLosesLongMessagesEnds(t *testing.T) {
	for name, passive := range map[string]bool{"the dialer sends": false, "the listener sends": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				cfg := resuming(n)
				clients, servers := streamsOfBoth(t, n, cfg, cfg, 2)
				long, short := clients, servers
				if passive {
					long, short = servers, clients
				}
				require.NoError(t, exchange(long[0], short[0], 1<<20, 1))
				losesLonger(n, 1000)
				started := time.Now()
				require.NoError(t, writeAll(long[0], make([]byte, 4000)))
				stop := make(chan struct{})
				go func() {
					defer close(stop)
					for writeAll(short[1], []byte{1}) == nil {
						time.Sleep(time.Second)
					}
				}()
				limit := deadline.New()
				limit.Set(started.Add(10 * time.Minute))
				_, err := long[0].Read(make([]byte, 1), limit)
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
				require.ErrorContains(t, err, "MTU")
				t.Log(time.Since(started), long[0].link.Info().Moves, err)
				require.Less(t, time.Since(started), cfg.ResumeTimeout+longAttempt)
				_, err = short[0].Read(make([]byte, 1), limit)
				require.ErrorIs(t, err, syscall.ECONNRESET)
				<-stop
				endAll(t, n, append(clients, servers...)...)
			})
		})
	}
}

// TestALinkThatMovesOftenLivesOn loses queue pairs one after the other while bytes wait
// that the peer has not received, for longer in all than one search may take.
func TestALinkThatMovesOftenLivesOn(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		for range 5 {
			losesLonger(n, 1000)
			require.NoError(t, writeAll(c, make([]byte, 4000)))
			time.Sleep(c.link.cfg.ResumeTimeout / 2) // it moves again and again
			losesLonger(n, 1<<30)
			time.Sleep(time.Hour) // nothing tells it meanwhile that the bytes have arrived
			endpointOf(c.link).Fail(fabric.ErrQueuePair)
			got, err := s.Discard(4000, deadline.New())
			require.NoError(t, err)
			require.Equal(t, 4000, got)
			time.Sleep(time.Second)
		}
		require.NoError(t, exchange(c, s, 1<<20, 1))
	})
}
