package link

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// TestAPathThatIsBackIsFoundAtOnce has the cable come back at any time of an attempt,
// long ones among them.
func TestAPathThatIsBackIsFoundAtOnce(t *testing.T) {
	for out := 5 * time.Second; out < 25*time.Second; out += 700 * time.Millisecond {
		t.Run(fmt.Sprint(out), func(t *testing.T) {
			resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
				n.Cut(true)
				require.NoError(t, writeAll(c, []byte("x")))
				time.Sleep(out)
				n.Cut(false)
				back := time.Now()
				_, err := s.Read(make([]byte, 1), unlimited())
				require.NoError(t, err)
				require.Less(t, time.Since(back), 1500*time.Millisecond)
			})
		})
	}
}

// TestEitherSideBringsAnotherQueuePair has one side alone lose the queue pair, where the other would not
// notice: nothing is sent, nobody is told, and requests of the other would not arrive, as where a firewall
// lets none through.
func TestEitherSideBringsAnotherQueuePair(t *testing.T) {
	for _, dialer := range []bool{true, false} {
		t.Run(fmt.Sprintf("the side that dialed: %t", dialer), func(t *testing.T) {
			resumedWith(t, far, func(cfg *Setup) { cfg.KeepAlive = -1 }, func(t *testing.T, n *sim.Network, c, s *Stream) {
				side, other := s.link, c.link
				if dialer {
					side, other = other, side
				}
				to := other.path.peers[0].Port()
				n.SetFaults(sim.Faults{Lose: func(e *sim.Endpoint, m sim.Message) bool {
					return m == sim.REQ && e.RemoteAddr().Port() == to
				}})
				for moves := range uint64(10) {
					ep := endpointOf(side)
					ep.Cut(true)
					ep.Fail(fabric.ErrQueuePair)
					require.Less(t, requireEcho(t, c, s), time.Second)
					require.Equal(t, moves+1, other.Info().Moves)
				}
				endAll(t, n, c, s)
			})
		})
	}
}

// TestRequestsThatCross has both sides lose their queue pair at the same time, so that the
// requests of both cross. Where messages take long, the side that dialed no longer waits for the
// answer to its own, and each gives up its own for the peer's. The next one brings another queue
// pair all the same.
func TestRequestsThatCross(t *testing.T) {
	for latency, bothGiveWay := range map[time.Duration]bool{
		time.Millisecond:      false,
		attemptPause / 4:      false,
		attemptPause * 3 / 4:  true,
		firstAttempt / 2:      true,
		firstAttempt * 11 / 5: true,
	} {
		t.Run(fmt.Sprint(latency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{Latency: latency})
				cfg := resuming(n)
				cfg.AckTimeout, cfg.KeepAlive = 2*time.Second, 10*time.Second
				c, s, _ := connectLink(t, n, cfg, cfg)
				var active, passive atomic.Int64
				testHookGaveWay = func(l *Link) {
					if l.active {
						active.Add(1)
					} else {
						passive.Add(1)
					}
				}
				defer func() { testHookGaveWay = func(*Link) {} }()
				endpointOf(c.link).Fail(fabric.ErrQueuePair)
				endpointOf(s.link).Fail(fabric.ErrQueuePair)
				t.Log(requireEcho(t, c, s), active.Load(), passive.Load())
				require.Equal(t, bothGiveWay, active.Load() > 0)
				require.Positive(t, passive.Load())
				require.EqualValues(t, 1, c.link.Info().Moves)
				require.EqualValues(t, 1, s.link.Info().Moves)
				underWay, _ := cfg.Reconnect.attempts.UnderWay(netip.AddrPort{})
				require.Zero(t, underWay, "turns that were not given back")
				endAll(t, n, c, s)
			})
		})
	}
}

// TestAPeerThatBreaksAgainAndAgainHasToWait has the queue pair break as soon as there is
// another.
func TestAPeerThatBreaksAgainAndAgainHasToWait(t *testing.T) {
	resumed(t, sim.Link{}, func(t *testing.T, n *sim.Network, c, s *Stream) {
		const long = 10 * time.Second
		for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if !c.link.Info().Seeking {
				endpointOf(s.link).Fail(fabric.ErrQueuePair)
			}
		}
		moves := c.link.Info().Moves
		require.NotZero(t, moves)
		require.LessOrEqual(t, moves, uint64(long/attemptPause)+1)
	})
}

// TestALinkThatSeeksIsNotAboutToFreeItsMemory has a link that nobody owns any more, but
// whose peer has to be told so.
func TestALinkThatSeeksIsNotAboutToFreeItsMemory(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		n.Cut(true)
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		require.NoError(t, c.Close(0))
		require.Zero(t, c.link.freeUnneeded())
		n.Cut(false)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 1, c.link.Info().Moves)
	})
}

// TestAListenerThatIsLateIsNoEnd has nobody listen for a moment where a peer takes its link
// up, as when the device is being added again.
func TestAListenerThatIsLateIsNoEnd(t *testing.T) {
	for _, late := range []time.Duration{10 * time.Millisecond, attemptPause * 9 / 10} {
		for _, dialers := range []bool{true, false} {
			resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
				r := s.link.path.listener
				if dialers {
					r = c.link.path.listener
				}
				require.NoError(t, r.listener.Close())
				endpointOf(c.link).Fail(fabric.ErrQueuePair)
				time.Sleep(late)
				l, err := n.Listen(r.listener.Addr(), reconnectBacklog)
				require.NoError(t, err)
				r.listener = l
				go r.serve(l)
				requireEcho(t, c, s)
			})
		}
	}
}

// TestAPeerThatIsGoneIsSoonGivenUpByAllItsLinks has the process of links be gone, and another card
// that its host may have be silent: that is not waited for. That one link has been told so has the
// others look there.
func TestAPeerThatIsGoneIsSoonGivenUpByAllItsLinks(t *testing.T) {
	for name, tt := range map[string]struct {
		links  int
		cards  []fabric.Card
		within time.Duration
	}{
		"one link, one card":    {1, []fabric.Card{{server1}}, 3 * attemptPause},
		"one link, two cards":   {1, []fabric.Card{{server1}, {server2}}, 3 * attemptPause},
		"many links, two cards": {100, []fabric.Card{{server1}, {server2}}, attemptTime / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				client := n.Host(fabric.Card{client1}, fabric.Card{client2})
				clients, servers := linksOfBoth(t, client, resuming(client), resuming(n.Host(tt.cards...)), tt.links)
				n.CutCard(server2, true)
				require.NoError(t, servers[0].link.path.listener.listener.Close())
				for _, s := range servers {
					s.link.Abort()
				}
				began := time.Now()
				for _, c := range clients {
					_, err := c.Read(make([]byte, 1), unlimited())
					require.Error(t, err)
				}
				require.Less(t, time.Since(began), tt.within)
				endAll(t, n, append(clients, servers...)...)
			})
		})
	}
}

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
		for range times(5) {
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

// TestCloseOutlivesTheQueuePairs has the last bytes be lost again with each of them: they are not taken for
// delivered when the link has gone on.
func TestCloseOutlivesTheQueuePairs(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		losesLonger(n, 1000)
		require.NoError(t, writeAll(c, make([]byte, 4000)))
		require.ErrorIs(t, c.Close(20*time.Second), syscall.ETIMEDOUT)
		require.Positive(t, c.link.Info().Moves)
		losesLonger(n, 1<<30)
	})
}
