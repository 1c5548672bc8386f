package link

import (
	"context"
	"errors"
	"net/netip"
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

// panicking is an endpoint that calls a user's function, which panics.
type panicking struct{ fabric.Endpoint }

func (panicking) Connect(context.Context, []byte) ([]byte, error) { panic("of the user's") }

// A program may recover from a panic of its own function, called to make a link,
// as net/http does from those of handlers. Whoever waits for that link makes one.
func TestAPanicOfAUsersFunctionKeepsNobodyFromAnAddress(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
		require.NoError(t, err)
		defer l.Close()
		accepted := make(chan *Stream, 1)
		go func() {
			ep, err := l.Accept()
			if err == nil {
				_, s, _ := Accept(context.Background(), ep, testConfig)
				accepted <- s
			}
		}()
		cfg := testConfig
		cfg.Addresses = new(Addresses)
		var pool Pool[string]
		dial := func(waits <-chan struct{}, made func(fabric.Endpoint) fabric.Endpoint) (*Stream, error) {
			return pool.Dial(context.Background(), "address", func(ctx context.Context) (*Stream, error) {
				<-waits
				ep, err := n.Dial(ctx, netip.MustParseAddrPort("10.0.0.2:7"), l.Addr())
				if err != nil {
					return nil, err
				}
				return Dial(ctx, made(ep), cfg)
			}, More{})
		}
		held, free := make(chan struct{}), make(chan struct{})
		close(free)
		panicked, dialed := make(chan any, 1), make(chan *Stream, 1)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = dial(held, func(ep fabric.Endpoint) fabric.Endpoint { return panicking{ep} })
		}()
		synctest.Wait()
		go func() {
			s, err := dial(free, func(ep fabric.Endpoint) fabric.Endpoint { return ep })
			if err != nil {
				t.Error(err)
			}
			dialed <- s
		}()
		synctest.Wait()
		close(held)
		require.Equal(t, "of the user's", <-panicked)
		synctest.Wait()
		time.Sleep(time.Second)
		require.Len(t, dialed, 1, "the other dial still waits")
		require.NoError(t, (<-dialed).Close(time.Second))
		require.NoError(t, (<-accepted).Close(time.Second))
	})
}

// Dials find a link that is being made, and that comes to nothing at whatever moment
// they look at it.
func TestNobodyUsesALinkThatWasNotMade(t *testing.T) {
	var pool Pool[string]
	refused := errors.New("refused")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10_000 {
				_, err := pool.Dial(context.Background(), "address", func(context.Context) (*Stream, error) {
					return nil, refused
				}, More{})
				if err != refused {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Empty(t, pool.places)
}

// TestALinkThatIsBackIsDialedOnAgain has a dial find that the link has lost its path: it
// makes another link, which goes when the first is back and its stream is over.
func TestALinkThatIsBackIsDialedOnAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		cfg.Addresses = new(Addresses)
		l := serveEcho(t, n, resuming(n))
		var pool Pool[string]
		dial := func() *Stream {
			t.Helper()
			s, err := pool.Dial(context.Background(), "address", func(ctx context.Context) (*Stream, error) {
				ep, err := n.Dial(ctx, netip.AddrPort{}, l.Addr())
				if err != nil {
					return nil, err
				}
				return Dial(ctx, ep, cfg)
			}, More{})
			require.NoError(t, err)
			return s
		}
		first := dial()
		here, there := first.link.path.own.Port, first.link.path.peers[0].Port()
		n.SetFaults(sim.Faults{Lose: func(e *sim.Endpoint, m sim.Message) bool {
			return m == sim.REQ && (e.RemoteAddr().Port() == here || e.RemoteAddr().Port() == there)
		}})
		endpointOf(first.link).Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		meanwhile := dial()
		require.True(t, meanwhile.link != first.link)
		require.True(t, first.link.lacksPath.Load())

		n.SetFaults(sim.Faults{})
		time.Sleep(2 * longAttempt)
		require.False(t, first.link.lacksPath.Load())
		again := dial()
		require.True(t, again.link == first.link)
		require.NoError(t, meanwhile.Close(time.Minute))
		time.Sleep(2 * cfg.LinkIdle)
		require.False(t, meanwhile.link.usable(), "it has left")
		require.True(t, first.link.usable())
		for _, s := range []*Stream{first, again} {
			require.NoError(t, s.Close(time.Minute))
		}
		require.NoError(t, l.Close())
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
}

// TestALinkWhoseListenerHasClosedIsNotDialedOn has the listener of a link close, which
// carries a stream yet: the dial is to find what there is now.
func TestALinkWhoseListenerHasClosedIsNotDialedOn(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, accepting := connectLink(t, n, testConfig, testConfig)
		var pool Pool[string]
		dial := func(made *Stream, err error) (*Stream, error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return pool.Dial(ctx, "address", func(context.Context) (*Stream, error) { return made, err }, More{})
		}
		_, err := dial(c, nil)
		require.NoError(t, err)
		accepting.refuse = wire.RefusedClosed
		_, err = dial(nil, syscall.ECONNREFUSED)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
	})
}

// TestTheLockOfALinkIsNotWaitedForInAPool has a link's lock be held, as while a device
// registers memory: dials to others, which need the pool, are not to wait for that.
func TestTheLockOfALinkIsNotWaitedForInAPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		c, s, _ := connectLink(t, n, resuming(n), resuming(n))
		var pool Pool[string]
		first, err := pool.Dial(context.Background(), "address", func(context.Context) (*Stream, error) { return c, nil }, More{})
		require.NoError(t, err)
		first.link.mu.Lock()
		_, found := pool.find("address", More{})
		first.link.mu.Unlock()
		require.Equal(t, carrying, found)
		endAll(t, n, c, s)
	})
}
