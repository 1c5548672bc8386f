package link

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// dialingProcess is a process that has its streams to one address on one link, or
// on several.
type dialingProcess struct {
	n     fabric.Fabric
	to    netip.AddrPort
	cfg   Setup
	links int                   // more than one, if not 0
	more  func() (*Link, error) // makes those beyond the first, if not nil
	pool  Pool[netip.AddrPort]

	mu   sync.Mutex
	ends []fabric.Endpoint
}

// dial begins a stream, and tries again where the other side says that it may.
func (p *dialingProcess) dial() (*Stream, error) {
	for {
		s, err := p.dialOnce()
		if refused := (*RefusedError)(nil); !errors.As(err, &refused) || !refused.Busy {
			return s, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *dialingProcess) dialOnce() (*Stream, error) {
	more := More{p.links, p.dialEmpty}
	if p.more != nil {
		more.Connect = p.more
	}
	return p.pool.Dial(context.Background(), p.to, p.dialLink, more)
}

func (p *dialingProcess) dialLink(ctx context.Context) (*Stream, error) {
	ep, err := p.endpoint(ctx)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, ep, p.cfg)
}

func (p *dialingProcess) dialEmpty() (*Link, error) {
	ctx := context.Background()
	ep, err := p.endpoint(ctx)
	if err != nil {
		return nil, err
	}
	return DialEmpty(ctx, ep, p.cfg)
}

// endpoint dials, and keeps the endpoint to be killed.
func (p *dialingProcess) endpoint(ctx context.Context) (fabric.Endpoint, error) {
	ep, err := p.n.Dial(ctx, netip.AddrPort{}, p.to)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = append(p.ends, ep)
	return ep, nil
}

// kill ends the links that there are.
func (p *dialingProcess) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ep := range p.ends {
		ep.(*sim.Endpoint).Kill()
	}
}

// serveEcho accepts streams and sends back what they bring.
func serveEcho(t *testing.T, n fabric.Fabric, cfg Setup) fabric.Listener {
	t.Helper()
	l, err := n.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 1000)
	require.NoError(t, err)
	cfg.Acceptor = echoing{}
	go func() {
		for {
			ep, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if _, s, err := Accept(context.Background(), ep, cfg); err == nil && s != nil {
					echoBack(s)
				}
			}()
		}
	}()
	return l
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

// A queue pair's port may be one that a stream on another link from its host has.
// The dialer is told to try another.
func TestALinkFromAPortThatAStreamHasIsDialedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		cfg := testConfig
		cfg.Addresses = new(Addresses)
		l := serveEcho(t, n, cfg)
		p := &dialingProcess{n: n, to: l.Addr(), cfg: testConfig}
		first, err := p.dialOnce()
		require.NoError(t, err)
		a := first.LocalAddr()
		require.True(t, cfg.Addresses.take(l.Addr(), netip.AddrPortFrom(a.Addr(), a.Port()+1)))
		other := &dialingProcess{n: n, to: l.Addr(), cfg: testConfig}
		_, err = other.dialOnce()
		var refused *RefusedError
		require.ErrorAs(t, err, &refused)
		require.True(t, refused.Busy)
		require.True(t, strings.HasPrefix(refused.Reason, "another connection has the addresses"), refused.Reason)
		second, err := other.dialOnce()
		require.NoError(t, err)
		require.NoError(t, first.Close(0))
		require.NoError(t, second.Close(0))
		require.NoError(t, l.Close())
		time.Sleep(2 * time.Minute)
	})
}

// Ports that streams of other processes of the dialer's host have are found out
// one by one, at the listener.
func TestPortsOfOtherProcessesAreNotInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		cfg := testConfig
		cfg.Addresses = new(Addresses)
		l := serveEcho(t, n, cfg)
		p := &dialingProcess{n: n, to: l.Addr(), cfg: testConfig}
		p.cfg.Addresses = new(Addresses)
		first, err := p.dialOnce()
		require.NoError(t, err)
		take := func(port int) {
			cfg.Addresses.take(l.Addr(), netip.AddrPortFrom(first.LocalAddr().Addr(), uint16(port)))
		}
		for port := firstEphemeral; port < 1<<16; port++ {
			if port%5 > 0 {
				take(port)
			}
		}
		for range 200 {
			s, err := p.dialOnce()
			require.NoError(t, err)
			require.NoError(t, s.Close(0))
		}
		for port := firstEphemeral; port < 1<<16; port++ {
			take(port)
		}
		_, err = p.dialOnce()
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		require.NoError(t, first.Close(0))
		require.NoError(t, l.Close())
		time.Sleep(2 * time.Minute)
	})
}
