package link

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// dialingProcess is a process that has its streams to one address on one link, or
// on several.
type dialingProcess struct {
	n        fabric.Fabric
	listener fabric.Listener
	passive  Setup // of the links' other ends
	cfg      Setup
	links    int                         // more than one, if not 0
	another  func(context.Context) error // called before a link beside others is made, if not nil
	answer   time.Duration               // see More.Answer
	pool     Pool[netip.AddrPort]

	mu   sync.Mutex
	ends []fabric.Endpoint
}

// echoed runs a test with a process that dials an echo server. In the end nothing may be left.
func echoed(t *testing.T, active, passive Setup, test func(t *testing.T, n *sim.Network, p *dialingProcess)) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		l, err := n.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 1000)
		require.NoError(t, err)
		p := &dialingProcess{n: n, listener: l, cfg: active, passive: passive}
		p.cfg.Addresses, p.passive.Addresses, p.passive.Acceptor = new(Addresses), new(Addresses), echoing{}
		for _, cfg := range []*Setup{&p.cfg, &p.passive} {
			if cfg.ResumeTimeout > 0 {
				cfg.Reconnect = &ReconnectListener{Fabric: n}
			}
		}
		go p.serveEcho()
		test(t, n, p)
		require.NoError(t, l.Close())
		time.Sleep(2 * time.Minute)
		require.Zero(t, inUse(p.cfg.Budget)+inUse(p.passive.Budget), "memory left in use")
	})
}

// serveEcho accepts streams and sends back what they bring.
func (p *dialingProcess) serveEcho() {
	for {
		ep, err := p.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			if _, s, err := Accept(context.Background(), ep, p.passive); err == nil {
				echoBack(s)
			}
		}()
	}
}

type echoing struct{}

func (echoing) Short(error) {}

func (echoing) Offer(s *Stream) wire.RefuseReason {
	go echoBack(s)
	return 0
}

func echoBack(s *Stream) {
	_, _ = io.Copy(writer{s}, reader{s})
	_ = s.Close(time.Second)
}

type writer struct{ *Stream }

func (w writer) Write(p []byte) (int, error) { return w.Stream.Write(p, unlimited()) }

// dial begins a stream, and tries again where the other side says that it may.
func (p *dialingProcess) dial(t *testing.T) *Stream {
	t.Helper()
	for {
		s, err := p.dialOnce()
		if refused := (*fabric.RefusedError)(nil); !errors.As(err, &refused) || !refused.Busy {
			require.NoError(t, err)
			return s
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *dialingProcess) dialOnce() (*Stream, error) { return p.dialWithin(context.Background()) }

func (p *dialingProcess) dialWithin(ctx context.Context) (*Stream, error) {
	return p.pool.Dial(ctx, p.listener.Addr(), p.dialLink, More{p.links, p.answer})
}

// begin dials in the background. What it returns waits for the stream.
func (p *dialingProcess) begin(t *testing.T) func() *Stream {
	dialed := make(chan *Stream, 1)
	go func() { dialed <- p.dial(t) }()
	synctest.Wait()
	return func() *Stream { return <-dialed }
}

func (p *dialingProcess) dialLink(ctx context.Context, another bool) (*Stream, error) {
	if another && p.another != nil {
		if err := p.another(ctx); err != nil {
			return nil, err
		}
	}
	ep, err := p.endpoint(ctx)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, ep, p.cfg)
}

// endpoint dials, and keeps the endpoint to be killed.
func (p *dialingProcess) endpoint(ctx context.Context) (fabric.Endpoint, error) {
	ep, err := p.n.Dial(ctx, netip.AddrPort{}, p.listener.Addr())
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = append(p.ends, ep)
	return ep, nil
}

// open dials so many streams, one after the other, and lets what that has brought
// about come to its end each time.
func (p *dialingProcess) open(t *testing.T, many int) (streams []*Stream) {
	t.Helper()
	for range many {
		streams = append(streams, p.dial(t))
		time.Sleep(time.Second)
	}
	return streams
}

func closeAll(t *testing.T, streams []*Stream) {
	t.Helper()
	for _, s := range streams {
		require.NoError(t, s.Close(time.Second))
	}
}

// onLinks is how many of the streams each link has.
func onLinks(streams []*Stream) map[*Link]int {
	on := make(map[*Link]int)
	for _, s := range streams {
		on[s.link]++
	}
	return on
}

// linksUp is how many links there are on a network with one listener.
func linksUp(n *sim.Network) int { return (n.Open() - 1) / 2 }

// A queue pair's port may be one that a stream on another link from its host has.
// The dialer is told to try another.
func TestALinkFromAPortThatAStreamHasIsDialedAgain(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		first := p.dial(t)
		a := first.LocalAddr()
		require.True(t, p.passive.Addresses.take(0, p.listener.Addr(), netip.AddrPortFrom(a.Addr(), a.Port()+1)))
		p.cfg.Dedicated = true
		_, err := p.dialLink(t.Context(), false)
		var refused *fabric.RefusedError
		require.ErrorAs(t, err, &refused)
		require.True(t, refused.Busy)
		require.True(t, strings.HasPrefix(refused.Reason, "another connection has the addresses"), refused.Reason)
		second, err := p.dialLink(t.Context(), false)
		require.NoError(t, err)
		closeAll(t, []*Stream{first, second})
	})
}

// Ports that streams of other processes of the dialer's host have are found out
// one by one, at the listener.
func TestPortsOfOtherProcessesAreNotInTheWay(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		first := p.dial(t)
		take := func(taken func(port int) bool) {
			for port := firstEphemeral; port < 1<<16; port++ {
				if taken(port) {
					p.passive.Addresses.take(0, p.listener.Addr(), netip.AddrPortFrom(first.LocalAddr().Addr(), uint16(port)))
				}
			}
		}
		take(func(port int) bool { return port%5 > 0 })
		for range 200 {
			s, err := p.dialOnce()
			require.NoError(t, err)
			require.NoError(t, s.Close(0))
		}
		time.Sleep(time.Second) // until the listener's side of the last has given up its port, which a try in 256 would find
		take(func(int) bool { return true })
		_, err := p.dialOnce()
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		require.NoError(t, first.Close(0))
	})
}

// A dial that is bound to fewer links has its streams on the oldest.
func TestAStreamBeginsOnTheLeastLoadedLink(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		p.links = 4
		streams := p.open(t, 4*busyLink)
		require.Len(t, onLinks(streams), 4)
		oldest := streams[0].link
		var kept []*Stream
		left := streams[len(streams)-1].link
		for _, s := range streams {
			if s.link == left {
				require.NoError(t, s.Close(time.Second))
			} else {
				kept = append(kept, s)
			}
		}
		time.Sleep(time.Second)
		for range 4 {
			s := p.open(t, 1)[0]
			require.Same(t, left, s.link)
			kept = append(kept, s)
		}

		p.links = 2
		few := p.open(t, 2*busyLink)
		require.LessOrEqual(t, len(onLinks(few)), 2)
		p.links = 0
		few = append(few, p.open(t, 1)...)
		require.Same(t, oldest, few[len(few)-1].link)
		closeAll(t, append(kept, few...))
	})
}

// The dial that finds all links busy makes the next one, on which its stream begins.
func TestADialMakesTheLinkThatItFindsMissing(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		p.links = 3
		var streams []*Stream
		for range 4 * busyLink {
			streams = append(streams, p.dial(t))
			links := min((len(streams)-1)/busyLink+1, p.links)
			require.Len(t, onLinks(streams), links, "of %d streams", len(streams))
			require.Len(t, p.ends, links, "none is made ahead")
		}
		closeAll(t, streams)
	})
}

// A device chooses the port of a queue pair, perhaps one that a stream to the same peer has. Then the link is made from
// another.
func TestALinkIsMadeFromAPortThatNoStreamHas(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		p.links = 2
		streams := p.open(t, busyLink)
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, p.listener.Addr())
		require.NoError(t, err)
		require.NoError(t, ep.Close())
		for next := ep.LocalAddr().Port() + 1; next < ep.LocalAddr().Port()+4; next++ {
			p.cfg.Addresses.take(p.cfg.Namespace, netip.AddrPortFrom(ep.LocalAddr().Addr(), next), p.listener.Addr())
		}
		streams = append(streams, p.dial(t))
		require.Len(t, onLinks(streams), 2)
		closeAll(t, streams)
	})
}

// However the making of another link goes on or ends, other dials go on over the first, and so
// does the one that makes it if that fails.
func TestNoDialWaitsForAnotherLinkOrFailsWithIt(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		var calls atomic.Int32
		end := make(chan error)
		p.links, p.another = 4, func(context.Context) error {
			calls.Add(1)
			return <-end
		}
		var streams []*Stream
		dial := func(many int) {
			for range many {
				streams = append(streams, p.dial(t))
			}
		}
		dial(busyLink)
		adds := p.begin(t)
		dial(10 * busyLink)
		require.EqualValues(t, 1, calls.Load(), "one at a time")
		end <- errors.New("refused")
		streams = append(streams, adds())
		dial(busyLink)
		require.EqualValues(t, 1, calls.Load(), "the place rests")
		require.Len(t, onLinks(streams), 1)

		time.Sleep(restTime)
		adds = p.begin(t)
		require.EqualValues(t, 2, calls.Load())
		p.ends[0].(*sim.Endpoint).Kill()
		time.Sleep(time.Second)
		waits := p.begin(t)
		end <- nil
		last := adds()
		require.True(t, last.link != streams[0].link)
		streams = append(streams, last, waits(), p.dial(t))
		require.Len(t, onLinks(streams), 2)
		require.NoError(t, writeAll(last, []byte("x")))
		_, err := last.Discard(1, unlimited())
		require.NoError(t, err)
		require.Equal(t, 1, linksUp(n))
		closeAll(t, streams)
		time.Sleep(time.Minute)
		p.pool.mu.Lock()
		defer p.pool.mu.Unlock()
		require.Empty(t, p.pool.places)
	})
}

// A dial that waits for another link, for the first has ended, does not fail with it either.
func TestADialThatWaitsForAnotherLinkMakesOneIfThatFails(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		end := make(chan error)
		p.links, p.another = 2, func(context.Context) error { return <-end }
		streams := p.open(t, busyLink)
		adds := p.begin(t)
		p.ends[0].(*sim.Endpoint).Kill()
		time.Sleep(time.Second)
		waits := p.begin(t)
		require.Len(t, p.ends, 1)
		end <- errors.New("refused")
		streams = append(streams, adds(), waits())
		require.Len(t, p.ends, 2, "they share the link that one of them has made")
		require.Len(t, onLinks(streams), 2)
		closeAll(t, streams)
	})
}

// A dial over auto has More.Answer in all, in which it begins on a link that there is although
// another is not answered.
func TestADialWaitsForAnotherLinkHalfAsLongAsForAnAnswer(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		p.answer = 250 * time.Millisecond
		p.links, p.another = 2, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		streams := p.open(t, busyLink)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), p.answer)
		defer cancel()
		s, err := p.dialWithin(ctx)
		require.NoError(t, err)
		require.True(t, s.link == streams[0].link)
		require.GreaterOrEqual(t, time.Since(began), p.answer/2)

		time.Sleep(restTime)
		ctx, cancel = context.WithTimeout(t.Context(), p.answer/4)
		defer cancel()
		_, err = p.dialWithin(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "the dial itself has ended")
		closeAll(t, append(streams, s))
	})
}

// A dial makes another link only where its memory is not what whatever begins may need, and does
// without where the listener has none.
func TestThereIsNoOtherLinkWhereMemoryIsShort(t *testing.T) {
	short := fixed(testConfig) + 2*busyLink*firstRing
	for name, has := range map[string]struct {
		dialer, listener, asked int
	}{
		"at the dialer":   {short, budget.Unlimited, 0},
		"at the listener": {budget.Unlimited, short, 1},
	} {
		t.Run(name, func(t *testing.T) {
			echoed(t, limitedTo(has.dialer), limitedTo(has.listener), func(t *testing.T, n *sim.Network, p *dialingProcess) {
				p.links = 4
				asked := 0
				p.another = func(context.Context) error { asked++; return nil }
				streams := p.open(t, 2*busyLink)
				require.Len(t, onLinks(streams), 1)
				require.Equal(t, 1, linksUp(n))
				require.Equal(t, has.asked, min(asked, 1))
				closeAll(t, streams)
			})
		})
	}
}

// panicking is an endpoint that calls a user's function, which panics.
type panicking struct{ fabric.Endpoint }

func (panicking) Connect(context.Context, []byte) ([]byte, error) { panic("of the user's") }

// A program may recover from a panic of its own function, called to make a link,
// as net/http does from those of handlers. Whoever waits for that link makes one.
func TestAPanicOfAUsersFunctionKeepsNobodyFromAnAddress(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		panicked, dialed := make(chan any, 1), make(chan *Stream, 1)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = p.pool.Dial(context.Background(), p.listener.Addr(), func(ctx context.Context, _ bool) (*Stream, error) {
				time.Sleep(time.Second)
				ep, err := p.endpoint(ctx)
				require.NoError(t, err)
				return Dial(ctx, panicking{ep}, p.cfg)
			}, More{})
		}()
		synctest.Wait()
		go func() { dialed <- p.dial(t) }()
		require.Equal(t, "of the user's", <-panicked)
		time.Sleep(time.Second)
		require.Len(t, dialed, 1, "the other dial still waits")
		require.NoError(t, (<-dialed).Close(time.Second))
	})
}

// TestALinkThatIsBackIsDialedOnAgain has a dial find that the link has lost its path: it
// makes another link, which goes when the first is back and its stream is over.
func TestALinkThatIsBackIsDialedOnAgain(t *testing.T) {
	cfg := testConfig
	cfg.KeepAlive, cfg.ResumeTimeout = time.Second, 30*time.Second
	echoed(t, cfg, cfg, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		first := p.dial(t)
		here, there := first.link.path.own.Port, first.link.path.peers[0].Port()
		n.SetFaults(sim.Faults{Lose: func(e *sim.Endpoint, m sim.Message) bool {
			return m == sim.REQ && (e.RemoteAddr().Port() == here || e.RemoteAddr().Port() == there)
		}})
		endpointOf(first.link).Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		meanwhile := p.dial(t)
		require.True(t, meanwhile.link != first.link)
		require.True(t, first.link.lacksPath.Load())

		n.SetFaults(sim.Faults{})
		time.Sleep(2 * longAttempt)
		require.False(t, first.link.lacksPath.Load())
		again := p.dial(t)
		require.True(t, again.link == first.link)
		require.NoError(t, meanwhile.Close(time.Minute))
		time.Sleep(2 * cfg.LinkIdle)
		require.False(t, meanwhile.link.usable(), "it has left")
		require.True(t, first.link.usable())
		closeAll(t, []*Stream{first, again})
	})
}

// TestADialThatGivesUpOnALinkWithoutAPathLeavesItToOthers has the path be lost while a dial waits for its
// answer: the next one finds the link when that has its path again.
func TestADialThatGivesUpOnALinkWithoutAPathLeavesItToOthers(t *testing.T) {
	cfg := testConfig
	cfg.KeepAlive, cfg.ResumeTimeout = time.Second, 30*time.Second
	echoed(t, cfg, cfg, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		first := p.open(t, 1)[0]
		n.Cut(true)
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
		defer cancel()
		_, err := p.dialWithin(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, first.link.Info().Seeking)
		n.Cut(false)
		time.Sleep(2 * longAttempt)
		require.False(t, first.link.Info().Seeking)
		again := p.dial(t)
		require.True(t, again.link == first.link)
		closeAll(t, []*Stream{first, again})
	})
}

// TestALinkWhoseListenerHasClosedIsNotDialedOn has the listener of a link close, which
// carries a stream yet: the dial is to find what there is now.
func TestALinkWhoseListenerHasClosedIsNotDialedOn(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, accepting := connectLink(t, n, testConfig, testConfig)
		var pool Pool[string]
		dial := func(made *Stream, err error) (*Stream, error) {
			return pool.Dial(context.Background(), "address", func(context.Context, bool) (*Stream, error) { return made, err }, More{})
		}
		_, err := dial(c, nil)
		require.NoError(t, err)
		accepting.refuse = wire.RefusedClosed
		_, err = dial(nil, syscall.ECONNREFUSED)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		endAll(t, n, c, s)
	})
}

// A link on which there is no room for another stream, at either end, is no reason why a dial fails:
// another link is made.
func TestADialFindsAnotherLinkWhereOneIsFull(t *testing.T) {
	small := testConfig
	small.RemoteMemory = 8 * slabSize
	fits := small.RemoteMemory / firstRing
	for name, cfg := range map[string]struct{ dialer, listener Setup }{
		"at the dialer":   {small, testConfig},
		"at the listener": {testConfig, small},
		"at both":         {small, small},
	} {
		t.Run(name, func(t *testing.T) {
			echoed(t, cfg.dialer, cfg.listener, func(t *testing.T, n *sim.Network, p *dialingProcess) {
				var streams []*Stream
				for range 3 * fits {
					s, err := p.dialOnce()
					for releasing(err) { // the port that the link's dial was given is that of a stream elsewhere
						s, err = p.dialOnce()
					}
					require.NoError(t, err)
					streams = append(streams, s)
				}
				require.GreaterOrEqual(t, len(onLinks(streams)), 3)
				require.LessOrEqual(t, len(onLinks(streams)), 4)
				for _, s := range streams {
					require.NoError(t, writeAll(s, []byte("x")))
				}
				closeAll(t, streams)
			})
		})
	}
}

func TestADialFindsAnotherLinkWhereAllNumbersAreInUse(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		first := p.dial(t)
		first.link.lock()
		*at[int](first.link.m, "streams.lowest") = wire.MaxStreams
		first.link.unlock()
		_, err := first.link.Open(t.Context())
		require.ErrorIs(t, err, syscall.EMFILE)
		second := p.dial(t)
		require.NotSame(t, first.link, second.link)
		closeAll(t, []*Stream{first, second})
	})
}

// TCP has 28,232 connections between two addresses of this host and one port.
func TestThereAreAsManyPortsAsTCPHas(t *testing.T) {
	var a Addresses
	to := netip.MustParseAddrPort("127.0.0.1:80")
	for range 28232 {
		_, ok := a.choose(0, to.Addr(), to)
		require.True(t, ok)
	}
}
