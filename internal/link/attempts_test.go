package link

import (
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// pauseOf cuts the cable for a while under two streams, and returns how much longer
// than the cable was out the peer waited for what was written meanwhile.
func pauseOf(t *testing.T, n *sim.Network, cfg Setup, out time.Duration) time.Duration {
	t.Helper()
	clients, servers := streamsOfBoth(t, n, cfg, cfg, 2)
	n.Cut(true)
	_, err := clients[0].Write([]byte("meanwhile"), unlimited())
	require.NoError(t, err)
	time.Sleep(out)
	n.Cut(false)
	back := time.Now()
	got := make([]byte, len("meanwhile"))
	_, err = io.ReadFull(reader{servers[0]}, got)
	require.NoError(t, err)
	pause := time.Since(back)
	require.Equal(t, "meanwhile", string(got))
	for i := range clients {
		require.NoError(t, clients[i].Close(time.Minute))
		require.NoError(t, servers[i].Close(time.Minute))
	}
	time.Sleep(2 * time.Minute)
	require.Zero(t, n.Open(), "endpoints or listeners left open")
	return pause
}

// TestAPeerThatAnswersLateIsFound has an answer take longer than a first attempt does.
func TestAPeerThatAnswersLateIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: 600 * time.Millisecond})
		cfg := resuming(n)
		cfg.AckTimeout, cfg.KeepAlive = 2*time.Second, 10*time.Second
		pauseOf(t, n, cfg, 20*time.Second)
	})
}

// TestAPathThatIsBackIsFoundAtOnce has the cable come back at any time of an attempt,
// long ones among them.
func TestAPathThatIsBackIsFoundAtOnce(t *testing.T) {
	for out := 5 * time.Second; out < 25*time.Second; out += 700 * time.Millisecond {
		t.Run(fmt.Sprint(out), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				pause := pauseOf(t, n, resuming(n), out)
				require.Less(t, pause, 1500*time.Millisecond)
			})
		})
	}
}

// TestAPathThatIsBackIsFoundThoughOthersAreSilent has both cables of two hosts come back, at
// any time of an attempt. Requests from one network to the other get no answer at any time.
func TestAPathThatIsBackIsFoundThoughOthersAreSilent(t *testing.T) {
	network := func(a netip.AddrPort) byte { return a.Addr().As4()[2] }
	for out := 5 * time.Second; out < 25*time.Second; out += 700 * time.Millisecond {
		t.Run(fmt.Sprint(out), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				active, passive, dialer := twoCards(n)
				c, s, _ := connectLink(t, dialer, active, passive)
				n.SetFaults(sim.Faults{Lose: func(e *sim.Endpoint, m sim.Message) bool {
					return m == sim.REQ && network(e.LocalAddr()) != network(e.RemoteAddr())
				}})
				n.Cut(true)
				endpointOf(c.link).Fail(fabric.ErrQueuePair)
				time.Sleep(out)
				n.Cut(false)
				require.Less(t, requireEcho(t, c, s), 4*attemptTime)
				endAll(t, n, c, s)
			})
		})
	}
}

// TestASearchThatEndsInItsFirstAttemptSaysWhat has the time be over before that.
func TestASearchThatEndsInItsFirstAttemptSaysWhat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		cfg.ResumeTimeout = firstAttempt / 2
		c, s, _ := connectLink(t, n, cfg, cfg)
		n.Cut(true)
		for _, end := range []*Stream{c, s} {
			endpointOf(end.link).Fail(fabric.ErrQueuePair)
			_, err := end.Read(make([]byte, 1), unlimited())
			require.ErrorContains(t, err, errNoAnswer.Error())
		}
		endAll(t, n, c, s)
	})
}

// TestEitherSideBringsAnotherQueuePair has requests of the other side not arrive, as where a
// firewall lets none through.
func TestEitherSideBringsAnotherQueuePair(t *testing.T) {
	for name, silent := range map[string]func(c, s *Stream) *Link{
		"the side that dialed": func(_, s *Stream) *Link { return s.link },
		"the other":            func(c, _ *Stream) *Link { return c.link },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				c, s, _ := connectLink(t, n, resuming(n), resuming(n))
				to := silent(c, s).path.peers[0].Port()
				n.SetFaults(sim.Faults{Lose: func(e *sim.Endpoint, m sim.Message) bool {
					return m == sim.REQ && e.RemoteAddr().Port() == to
				}})
				for moves := range uint64(10) {
					endpointOf(c.link).Fail(fabric.ErrQueuePair)
					endpointOf(s.link).Fail(fabric.ErrQueuePair)
					require.Less(t, requireEcho(t, c, s), time.Second)
					require.Equal(t, moves+1, c.link.Info().Moves)
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
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		cfg := resuming(n)
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 1)
		const long = 10 * time.Second
		for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if !clients[0].link.Info().Seeking {
				endpointOf(servers[0].link).Fail(fabric.ErrQueuePair)
			}
		}
		moves := clients[0].link.Info().Moves
		require.NotZero(t, moves)
		require.LessOrEqual(t, moves, uint64(long/attemptPause)+1)
		require.NoError(t, clients[0].Close(time.Minute))
		require.NoError(t, servers[0].Close(time.Minute))
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
}

// TestALinkThatSeeksIsNotAboutToFreeItsMemory has a link that nobody owns any more, but
// whose peer has to be told so.
func TestALinkThatSeeksIsNotAboutToFreeItsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 1)
		l := clients[0].link
		n.Cut(true)
		endpointOf(l).Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		require.True(t, l.Info().Seeking)
		require.NoError(t, clients[0].Close(0))
		require.Zero(t, l.freeUnneeded())
		n.Cut(false)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 1, l.Info().Moves)
		require.NoError(t, servers[0].Close(time.Minute))
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
}

// TestAListenerThatIsLateIsNoEnd has nobody listen for a moment where a peer takes its link
// up, as when the device is being added again.
func TestAListenerThatIsLateIsNoEnd(t *testing.T) {
	for _, late := range []time.Duration{10 * time.Millisecond, attemptPause * 9 / 10} {
		for name, which := range map[string]func(c, s *Stream) *Link{
			"of the side that dialed": func(c, _ *Stream) *Link { return c.link },
			"of the other":            func(_, s *Stream) *Link { return s.link },
		} {
			t.Run(fmt.Sprint(name, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := sim.New(far)
					c, s, _ := connectLink(t, n, resuming(n), resuming(n))
					r := which(c, s).path.listener
					at := r.listener.Addr()
					require.NoError(t, r.listener.Close())
					endpointOf(c.link).Fail(fabric.ErrQueuePair)
					time.Sleep(late)
					l, err := n.Listen(at, reconnectBacklog)
					require.NoError(t, err)
					r.listener = l
					go r.serve(l)
					requireEcho(t, c, s)
					endAll(t, n, c, s)
				})
			})
		}
	}
}

// TestAPeerThatIsGoneIsSoonGivenUp has nobody listen any more. What does not answer at all,
// another card of the peer's, is not waited for.
func TestAPeerThatIsGoneIsSoonGivenUp(t *testing.T) {
	alone := func(n *sim.Network) (active, passive Setup, dialer fabric.Fabric) {
		return resuming(n), resuming(n), n
	}
	silent := func(n *sim.Network) (active, passive Setup, dialer fabric.Fabric) {
		n.CutCard(server2, true)
		return twoCards(n)
	}
	for name, hosts := range map[string]func(*sim.Network) (active, passive Setup, dialer fabric.Fabric){
		"one card": alone, "a card that is silent": silent,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				active, passive, dialer := hosts(n)
				c, s, _ := connectLink(t, dialer, active, passive)
				require.NoError(t, s.link.path.listener.listener.Close())
				s.link.Abort()
				began := time.Now()
				_, err := c.Read(make([]byte, 1), unlimited())
				require.Error(t, err)
				require.Less(t, time.Since(began), 3*attemptPause)
				_ = c.Close(0)
				_ = s.Close(0)
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// TestAPeerThatIsGoneIsSoonGivenUpByAllItsLinks has the process of many links be gone, and
// what else the host has be silent: that one link has been told so has the others look there.
func TestAPeerThatIsGoneIsSoonGivenUpByAllItsLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		_, passive, _ := twoCards(n)
		client := n.Host(fabric.Card{client1})
		clients, servers := linksOfBoth(t, client, resuming(client), passive, 100)
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
		require.Less(t, time.Since(began), attemptTime/2)
		for i := range clients {
			_ = clients[i].Close(0)
			_ = servers[i].Close(0)
		}
		time.Sleep(2 * time.Minute)
	})
}
