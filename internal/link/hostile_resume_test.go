package link

import (
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// Peers that have the secret of a link, break its queue pair, and mean harm when they
// come back.

// returner is a hand-driven peer that dialed a link and can come back to it.
type returner struct {
	*rawPeer
	n       *sim.Network
	at      netip.AddrPort // where the other side takes the link up
	told    wire.Reconnect
	attempt uint32
}

// besideAReturner runs a test with a stream of a link that such a peer has dialed. When
// the test is over the peer stays away, and the link is to end for that.
func besideAReturner(t *testing.T, test func(t *testing.T, s *Stream, p *returner)) {
	onNetwork(t, sim.Link{Latency: time.Millisecond}, func(t *testing.T, n *sim.Network, l fabric.Listener) {
		cfg := resuming(n)
		cfg.Acceptor, cfg.Addresses = newBacklog(), new(Addresses)
		var s *Stream
		accepted := accepting(l, func(ep fabric.Endpoint) (err error) {
			_, s, err = Accept(t.Context(), ep, cfg)
			return err
		})
		returns, err := n.Listen(netip.AddrPort{}, 8)
		require.NoError(t, err)
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		p := &returner{rawPeer: openRaw(t, ep), n: n}
		go p.putOff(returns)
		answer := p.connect(wire.Reconnect{Port: returns.Addr().Port()}.AppendRequest(p.helloWith(credit.OpenRecord, wire.Resume)))
		told, ok := wire.AnsweredReconnect(answer)
		require.True(t, ok)
		p.told, p.at = told, netip.AddrPortFrom(l.Addr().Addr(), told.Port)
		require.NoError(t, <-accepted)
		test(t, s, p)

		_ = p.ep.Close()
		left := time.Now()
		_, err = s.Read(make([]byte, 1), unlimited())
		if err != net.ErrClosed { // the test has closed it
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
		require.LessOrEqual(t, time.Since(left), cfg.ResumeTimeout+drainTime)
		_ = s.Close(0)
		require.NoError(t, returns.Close())
	})
}

// putOff answers the other side's requests with that it is to wait.
func (p *returner) putOff(l fabric.Listener) {
	for {
		ep, err := l.Accept()
		if err != nil {
			return
		}
		_ = ep.Reject(wire.Reject{Busy: true}.Append(nil))
		_ = ep.Close()
	}
}

// another is another queue pair, to bring.
func (p *returner) another() *rawPeer {
	ep, err := p.n.Dial(p.t.Context(), netip.AddrPort{}, p.at)
	require.NoError(p.t, err)
	return openRaw(p.t, ep)
}

// comeBack breaks the queue pair and brings another.
func (p *returner) comeBack() {
	_ = p.ep.Close()
	p.rawPeer = p.another()
	p.attempt++
	require.NoError(p.t, p.request(p.ep, p.attempt))
	require.NoError(p.t, p.ep.Confirm())
}

// request makes a request.
func (p *returner) request(ep fabric.Endpoint, attempt uint32) error {
	m := wire.Resumption{Kind: wire.ResumeRequest, Link: p.told.Link, Attempt: attempt}
	_, err := ep.Connect(p.t.Context(), m.Append(nil, wire.Seal{Secret: p.told.Secret, From: ep.LocalAddr().Addr(), To: ep.RemoteAddr().Addr()}))
	return err
}

// say sends bytes where keys are expected.
func (p *returner) say(b []byte) {
	_ = p.ep.PostSend([]fabric.WorkRequest{{Op: fabric.Send, Signaled: true, Data: append(p.out.Bytes()[:0], b...), Memory: p.out}})
}

// hear waits for a message of the other side's, and until it has what was said, and says
// whether there was one.
func (p *returner) hear() bool {
	var c [1]fabric.Completion
	var heard, said bool
	for end := time.Now().Add(2 * attemptTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		n, err := p.ep.Poll(c[:])
		switch {
		case err != nil || n == 1 && c[0].Status != fabric.OK:
			return false
		case n == 1 && c[0].Recv:
			heard = p.ep.PostRecv(1) == nil
		case n == 1:
			said = true
		}
		if heard && said {
			return true
		}
	}
	return false
}

// goOn comes back as the protocol has it.
func (p *returner) goOn() {
	p.comeBack()
	p.say(wire.Keys{}.Append(nil))
	require.True(p.t, p.hear())
}

func TestAPeerThatComesBackWithNonsenseIsGivenUp(t *testing.T) {
	many := make(wire.Regions, wire.MaxRegions)
	for name, test := range map[string]struct {
		come   func(p *returner)
		breach string // "": none, and the peer may come again
	}{
		"silence":          {func(*returner) {}, ""},
		"half an exchange": {func(p *returner) { p.say(wire.Keys{More: true, Regions: many}.Append(nil)) }, ""},
		"has received what was never sent": {func(p *returner) {
			for heard := true; heard; heard = p.hear() {
				p.say(wire.Keys{Received: wire.Header{Data: 1 << 40, Records: 1 << 40}}.Append(nil))
			}
		}, "acknowledgement of"},
		"keys without end": {func(p *returner) { p.say(wire.Keys{More: true}.Append(nil)) }, "keys in a message of 18 bytes"},
		"more keys than there can be": {func(p *returner) {
			for range 2 * maxRegions / wire.MaxRegions {
				p.say(wire.Keys{More: true, Regions: many}.Append(nil))
				if !p.hear() {
					return
				}
			}
		}, "regions of memory"},
		"other totals": {func(p *returner) {
			p.say(wire.Keys{More: true, Regions: many}.Append(nil))
			require.True(p.t, p.hear())
			p.say(wire.Keys{Received: wire.Header{Data: 1}}.Append(nil))
		}, "keys with totals that have changed"},
		"keys behind the last": {func(p *returner) {
			p.say(wire.Keys{}.Append(nil))
			require.True(p.t, p.hear())
			p.say(wire.Keys{More: true, Regions: many}.Append(nil))
		}, "keys behind the last"},
		"no keys": {func(p *returner) { p.say([]byte("GET / HTTP/1.1\r\n\r\n")) }, "keys in a message of 18 bytes"},
		"data": {func(p *returner) {
			_ = p.ep.PostSend([]fabric.WorkRequest{{Op: fabric.WriteImm, Signaled: true, RemoteAddr: p.peer.Addr, RKey: p.peer.RKey}})
		}, "a message that does not have the peer's keys"},
	} {
		t.Run(name, func(t *testing.T) {
			besideAReturner(t, func(t *testing.T, s *Stream, p *returner) {
				addSlabs(t, s.link, 2*wire.MaxRegions) // whose keys take more than one SEND
				before := inUse(testConfig.Budget)
				p.comeBack()
				test.come(p)
				time.Sleep(2 * attemptTime)
				require.Zero(t, s.link.Info().Moves)
				if test.breach == "" {
					require.LessOrEqual(t, inUse(testConfig.Budget), before)
					return
				}
				_, err := s.Read(make([]byte, 1), unlimited())
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorContains(t, err, test.breach)
				require.NoError(t, s.Close(0))
			})
		})
	}
}

// Keys are for rings that the peer has told of. Others change nothing.
func TestKeysForMemoryThatIsNotThePeers(t *testing.T) {
	besideAReturner(t, func(t *testing.T, s *Stream, p *returner) {
		p.comeBack()
		p.say(wire.Keys{Regions: wire.Regions{{Addr: 0, Size: 1 << 31, Key: 1}, {Addr: 1 << 63, Size: 1<<32 - 1, Key: 2}}}.Append(nil))
		require.True(t, p.hear())
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 1, s.link.Info().Moves)
	})
}

// A peer that comes back again and again has this side hold what it has always held.
func TestAPeerThatComesBackAThousandTimes(t *testing.T) {
	besideAReturner(t, func(t *testing.T, s *Stream, p *returner) {
		hold := func() (memory, endpoints, goroutines int) {
			time.Sleep(time.Second)
			synctest.Wait()
			return inUse(testConfig.Budget), p.n.Open(), runtime.NumGoroutine()
		}
		p.goOn()
		memory, endpoints, goroutines := hold()
		moves := times(1000)
		for range moves {
			p.goOn()
		}
		memoryNow, endpointsNow, goroutinesNow := hold()
		require.Equal(t, memory, memoryNow)
		require.Equal(t, endpoints, endpointsNow)
		require.LessOrEqual(t, goroutinesNow, goroutines+2, "but for timers that fire")
		require.EqualValues(t, moves+1, s.link.Info().Moves)
	})
}

// A peer that makes requests without waiting has one answer and one request at a
// time.
func TestAPeerThatAsksForItsLinkWithoutWaiting(t *testing.T) {
	besideAReturner(t, func(t *testing.T, s *Stream, p *returner) {
		const requests = 100
		var answered atomic.Int64
		var all sync.WaitGroup
		for i := range requests {
			all.Go(func() {
				ep := p.another().ep
				defer ep.Close()
				time.Sleep(time.Duration(i) * 100 * time.Microsecond) // one attempt after the other
				_ = p.request(ep, uint32(1+i))
				answered.Add(1)
			})
		}
		time.Sleep(100 * time.Millisecond)
		require.GreaterOrEqual(t, answered.Load(), int64(requests-2))
		all.Wait()
		p.attempt = requests
		p.goOn()
		require.EqualValues(t, 1, s.link.Info().Moves)
	})
}

// A peer that answers nothing, but comes back before the link has been waited for long
// enough, does not keep it from ending when its streams are closed.
func TestAPeerThatComesBackDoesNotKeepTheLink(t *testing.T) {
	besideAReturner(t, func(t *testing.T, s *Stream, p *returner) {
		require.NoError(t, s.Close(0))
		closed := time.Now()
		for !isGone(s.link) {
			require.Less(t, time.Since(closed), s.link.cfg.LinkIdle+s.link.cfg.ResumeTimeout+4*closeTimeout)
			p.goOn()
			time.Sleep(closeTimeout / 2)
		}
	})
}

// A peer that asks for its link before it has confirmed the handshake has the link: its confirmation
// may be lost.
func TestAPeerThatComesBackBeforeItsLinkHasBegun(t *testing.T) {
	onNetwork(t, sim.Link{Latency: time.Millisecond}, func(t *testing.T, n *sim.Network, l fabric.Listener) {
		var s *Stream
		accepted := accepting(l, func(ep fabric.Endpoint) (err error) {
			_, s, err = Accept(t.Context(), ep, resuming(n))
			return err
		})
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		p := &returner{rawPeer: openRaw(t, ep), n: n}
		answer, err := ep.Connect(t.Context(), wire.Reconnect{Port: 1}.AppendRequest(p.helloWith(credit.OpenRecord, wire.Resume)))
		require.NoError(t, err)
		p.told, _ = wire.AnsweredReconnect(answer)
		p.at = netip.AddrPortFrom(l.Addr().Addr(), p.told.Port)
		p.rawPeer = p.another()
		require.NoError(t, p.request(p.ep, 1))
		require.NoError(t, p.ep.Confirm())
		p.say(wire.Keys{}.Append(nil))
		require.True(t, p.hear())
		require.NoError(t, <-accepted)
		require.NoError(t, s.Close(0))
		require.NoError(t, p.ep.Close())
		require.NoError(t, ep.Close())
	})
}

// A link that has said GOAWAY and waits for the peer's has a request of the peer's instead. Its
// queue pair gives nothing back, so idleTick ends the link before drainTick would. The request is
// refused all the same, and its endpoint closed.
func TestARequestOnALinkThatIdleTickEndsIsRefused(t *testing.T) {
	besideAReturner(t, func(t *testing.T, s *Stream, p *returner) {
		last := func(typ credit.Record) {
			time.Sleep(100 * time.Millisecond)
			p.last(typ)
		}
		require.NoError(t, s.CloseWrite())
		last(credit.FinRecord)
		p.control(finAt(0), finAck)
		require.NoError(t, s.Close(time.Second))
		time.Sleep(s.link.cfg.LinkIdle)
		last(credit.GoAwayRecord)
		time.Sleep(3 * time.Second)
		require.False(t, isGone(s.link))
		passive := endpointOf(s.link)
		p.n.SetFaults(sim.Faults{Unflushed: func(e *sim.Endpoint) bool { return e == passive }})
		ep := p.another().ep
		defer ep.Close()
		err := p.request(ep, 1)
		require.True(t, isGone(s.link))
		require.True(t, machine.Rejected(err) != nil, "%v", err)
	})
}

// isGone reports whether a link has ended.
func isGone(l *Link) bool {
	select {
	case <-l.Gone():
		return true
	default:
		return false
	}
}
