package link

import (
	"io"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// What a link does after it has gone on over another queue pair, which it did before.

// TestABufferThatThePeerHadComesBack has the queue pair lost when the peer has received
// all of a buffer, and its owner does not know yet.
func TestABufferThatThePeerHadComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := sim.Link{Latency: time.Millisecond}
		n := sim.New(link)
		cfg := resuming(n)
		cfg.KeepAlive = -1
		c, s, _ := connectLink(t, n, cfg, cfg)
		b, err := c.link.NewBuffer(4096)
		require.NoError(t, err)
		ep := endpointOf(c.link)
		_, err = c.WriteBuffer(b, 0, 100, unlimited())
		require.NoError(t, err)
		_, err = s.Read(make([]byte, 100), unlimited())
		require.NoError(t, err)
		ep.Fail(fabric.ErrQueuePair) // the acknowledgement is under way
		began := time.Now()
		b.Wait()
		require.Less(t, time.Since(began), 10*time.Second)
		b.Close()
		require.NoError(t, c.Close(time.Minute))
		require.NoError(t, s.Close(time.Minute))
		time.Sleep(2 * time.Minute)
	})
}

// TestALinkThatHasEndedIsNotWaitedFor has the side that dialed the link end it while its
// streams have an owner yet, as one that finds a breach does.
func TestALinkThatHasEndedIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		c, s, _ := connectLink(t, n, cfg, cfg)
		up := len(List())
		c.link.Abort()
		began := time.Now()
		_, err := s.Read(make([]byte, 1), unlimited())
		require.Error(t, err)
		require.Less(t, time.Since(began), 2*time.Second)
		synctest.Wait()
		require.Len(t, List(), up-2, "its streams have owners yet, but it is not up")
		_ = c.Close(time.Minute)
		_ = s.Close(time.Minute)
		time.Sleep(2 * time.Minute)
	})
}

// TestASideWithoutTheBytesEndsTheLink has the peer's device acknowledge what its host never
// sees.
func TestASideWithoutTheBytesEndsTheLink(t *testing.T) {
	for _, active := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := sim.New(far)
			cfg := resuming(n)
			c, s, _ := connectLink(t, n, cfg, cfg)
			from, to := c, s
			if !active {
				from, to = s, c
			}
			endpointOf(to.link).HoldReceives(true)
			require.NoError(t, writeAll(from, make([]byte, 1000)))
			time.Sleep(time.Second)
			began := time.Now()
			endpointOf(to.link).Fail(fabric.ErrDeviceRemoved)
			for _, s := range []*Stream{from, to} {
				_, err := s.Read(make([]byte, 1), unlimited())
				require.Error(t, err)
			}
			require.Less(t, time.Since(began), 10*time.Second)
			_ = c.Close(time.Minute)
			_ = s.Close(time.Minute)
			time.Sleep(2 * time.Minute)
		})
	}
}

// TestABufferIsMadeDuringABreak asks for one while the path is lost: the connection lives.
func TestABufferIsMadeDuringABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		c, s, _ := connectLink(t, n, cfg, cfg)
		n.Cut(true)
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		time.AfterFunc(3*time.Second, func() { n.Cut(false) })
		b, err := c.link.NewBuffer(4096)
		require.NoError(t, err)
		b.Close()
		require.NoError(t, c.Close(time.Minute))
		require.NoError(t, s.Close(time.Minute))
		time.Sleep(2 * time.Minute)
	})
}

// TestALateTickOfADrainIsNone has the timer of a queue pair's drain, which has ended, come
// too late to be stopped: the link is at work on another one, or drains that.
func TestALateTickOfADrainIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		c, s, _ := connectLink(t, n, cfg, cfg)
		first := endpointOf(c.link)
		first.Fail(fabric.ErrQueuePair)
		requireEcho(t, c, s)
		c.link.drainTick(first)
		requireEcho(t, c, s)
		require.EqualValues(t, 1, c.link.Info().Moves)

		second := endpointOf(c.link)
		second.HoldReceives(true)
		require.NoError(t, writeAll(s, make([]byte, 1000)))
		time.Sleep(time.Second)
		second.Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		c.link.drainTick(first)
		second.HoldReceives(false)
		_, err := io.ReadFull(reader{c}, make([]byte, 1000))
		require.NoError(t, err)
		endAll(t, n, c, s)
	})
}

// TestAQueuePairThatIsGivenUpIsEmptiedFirst has more arrive than is polled at a time, which
// the peer has freed, before the device is gone or the drain is over.
func TestAQueuePairThatIsGivenUpIsEmptiedFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that no engine polls before it is given up
	for name, giveUp := range map[string]func(ep *sim.Endpoint, l *Link){
		"the device is gone": func(ep *sim.Endpoint, _ *Link) {
			ep.HoldReceives(false)
			ep.Fail(fabric.ErrDeviceRemoved)
		},
		"the device is cut off": func(ep *sim.Endpoint, l *Link) {
			l.cfg.Reconnect.Fabric.(*sim.Network).SetFaults(sim.Faults{Disconnect: func(e *sim.Endpoint) error {
				if e == ep {
					return fabric.ErrDeviceRemoved
				}
				return nil
			}})
			ep.HoldReceives(false)
			ep.Fail(fabric.ErrDeviceRemoved)
		},
		"the drain is over": func(ep *sim.Endpoint, l *Link) {
			ep.Fail(fabric.ErrQueuePair)
			time.Sleep(time.Second)
			ep.HoldReceives(false)
			l.drainTick(ep)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{Latency: time.Millisecond, Inline: -1})
				cfg := resuming(n)
				cfg.SendQueue = 256
				clients, servers := streamsOfBoth(t, n, cfg, cfg, 3*maxPolls*maxBatch)
				l := servers[0].link
				ep := endpointOf(l)
				ep.HoldReceives(true)
				for _, c := range clients {
					require.NoError(t, writeAll(c, make([]byte, 1000)))
				}
				time.Sleep(time.Second)
				giveUp(ep, l)
				for !l.usable() { // no call but the engine's polls
					time.Sleep(time.Second)
				}
				for _, s := range servers {
					_, err := io.ReadFull(reader{s}, make([]byte, 1000))
					require.NoError(t, err)
				}
				endAll(t, n, append(clients, servers...)...)
			})
		})
	}
}

// TestAPortThatGoesDownWhileALinkMovesToItIsNoticed has no keepalive notice it.
func TestAPortThatGoesDownWhileALinkMovesToItIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: 100 * time.Millisecond})
		cfg := resuming(n)
		cfg.KeepAlive = -1
		c, s, _ := connectLink(t, n, cfg, cfg)
		requireEcho(t, c, s)
		keys := make(chan *sim.Endpoint, 100) // that posts the first of them
		n.SetFaults(sim.Faults{PostSend: func(ep *sim.Endpoint, _ []fabric.WorkRequest) error {
			keys <- ep
			return nil
		}})
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		ep := <-keys
		n.SetFaults(sim.Faults{})
		ep.Fail(fabric.ErrPortDown)
		for !c.link.usable() || !s.link.usable() {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(portDownTimeout / 2) // until nothing is under way
		n.Cut(true)
		time.Sleep(cfg.ResumeTimeout / 2)
		require.True(t, c.link.Info().Seeking || s.link.Info().Seeking)
		n.Cut(false)
		requireEcho(t, c, s)
		require.EqualValues(t, 2, c.link.Info().Moves)
		endAll(t, n, c, s)
	})
}

// TestASideThatHasClosedHasPatienceAfterABreak has a side close before a break, whose
// patience with the other ends when the link has just gone on: it has heard nothing yet.
func TestASideThatHasClosedHasPatienceAfterABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		c, s, _ := connectLink(t, n, cfg, cfg)
		require.NoError(t, c.Close(0))
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		for c.link.Info().Moves == 0 {
			time.Sleep(time.Millisecond)
		}
		c.closeTick()
		c.link.idleTick()
		require.True(t, c.link.usable())
		require.NoError(t, writeAll(s, []byte("said in vain")))
		time.Sleep(closeTimeout / 2)
		require.True(t, c.link.usable())
		require.NoError(t, s.Close(time.Minute))
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
}

// TestALinkWithMuchMemoryGoesOnFarAway has more keys to tell than can be told in the time
// that an attempt to reach the peer may take.
func TestALinkWithMuchMemoryGoesOnFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: 20 * time.Millisecond})
		cfg := resuming(n)
		c, s, _ := connectLink(t, n, cfg, cfg)
		addSlabs(t, s.link, 1000)
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		require.Less(t, requireEcho(t, c, s), 5*time.Second)
		require.EqualValues(t, 1, c.link.Info().Moves)
		_ = c.Close(time.Minute)
		_ = s.Close(time.Minute)
		time.Sleep(2 * time.Minute)
	})
}

// TestAPeerThatHasGoneOnAloneIsTold has the peer's last keys come on another queue pair, and
// this side's host not see them, where nothing else tells the peer that it has gone on alone.
func TestAPeerThatHasGoneOnAloneIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		client, server := n.Host(fabric.Card{client1}), n.Host(fabric.Card{server1})
		active, passive := resuming(client), resuming(server)
		active.KeepAlive, passive.KeepAlive = -1, -1
		c, s, _ := connectLink(t, client, active, passive)
		second := make(chan *sim.Endpoint, 1) // of the side that was dialed
		n.SetFaults(sim.Faults{PostSend: func(e *sim.Endpoint, _ []fabric.WorkRequest) error {
			if e.LocalAddr().Addr() == client1 && len(second) == 0 {
				peers := n.Find(e.RemoteAddr(), e.LocalAddr())
				peers.HoldReceives(true)
				second <- peers
			}
			return nil
		}})
		endpointOf(s.link).Fail(fabric.ErrQueuePair)
		time.Sleep(attemptTime / 2)
		require.EqualValues(t, 1, c.link.Info().Moves)
		require.Zero(t, s.link.Info().Moves)
		(<-second).Cut(true)
		n.SetFaults(sim.Faults{})
		require.Less(t, requireEcho(t, s, c), 10*time.Second)
		endAll(t, n, c, s)
	})
}

// TestTheExchangeOfKeysMayBreakAtAnyTime loses the queue pair on which keys are told, at
// one end, soon after each of the SENDs in turn, where each side has more or less to tell.
func TestTheExchangeOfKeysMayBreakAtAnyTime(t *testing.T) {
	for _, slabs := range [][2]int{{0, 0}, {20, 0}, {0, 20}, {40, 20}} {
		for seed := range uint64(seeds(40)) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond, Seed: seed})
				cfg := resuming(n)
				c, s, _ := connectLink(t, n, cfg, cfg)
				for i, l := range []*Link{c.link, s.link} {
					addSlabs(t, l, slabs[i])
				}
				r := rand.New(rand.NewPCG(seed, 4))
				at, soon, ours := int32(1+r.IntN(8)), time.Duration(r.IntN(4000))*time.Microsecond, r.IntN(2) == 0
				endpointOf(c.link).Fail(fabric.ErrQueuePair)
				var sends atomic.Int32
				n.SetFaults(sim.Faults{Send: func(e *sim.Endpoint, wr *fabric.WorkRequest) fabric.Status {
					if wr.Op == fabric.Send && sends.Add(1) == at {
						time.AfterFunc(soon, func() {
							if !ours {
								e = n.Find(e.RemoteAddr(), e.LocalAddr())
							}
							if e != nil {
								e.Fail(fabric.ErrQueuePair)
							}
						})
					}
					return fabric.OK
				}})
				requireEcho(t, c, s)
				requireEcho(t, s, c)
				_ = c.Close(time.Minute)
				_ = s.Close(time.Minute)
				time.Sleep(2 * time.Minute)
				require.Zero(t, n.Open(), "endpoints or listeners left open")
			})
		}
	}
}
