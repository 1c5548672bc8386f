package ringnet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/internal/wire"
)

// linksTo returns the links that this process has dialed to a listener.
func linksTo(l *Listener) (dialed []LinkInfo) {
	for _, i := range Links() {
		if i.Dialed && i.Remote == l.Addr() {
			dialed = append(dialed, i)
		}
	}
	return dialed
}

// echoAll sends back what arrives on the connections that l accepts. It returns when l is
// closed and all of them have ended.
func echoAll(l *Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() {
			defer c.Close()
			_, _ = io.Copy(c, c) // the dialer notices an error
		})
	}
}

func TestConnectionsAreSpreadOverAsManyLinksAsConfigSays(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		limitMemory(t, 0) // no links of other tests are left
		l := h.listen(t, ListenConfig{Config: small})
		go echoAll(l)
		cfg := *small
		cfg.Links = 3
		d := Dialer{Config: &cfg}
		var conns []net.Conn
		dial := func(many int) {
			for range many {
				c := dial(t, &d, h.network, l.Addr().String())
				conns = append(conns, c)
			}
		}
		for links := 1; links <= 3; links++ {
			dial(8)
			require.Len(t, linksTo(l), links)
		}
		dial(8)
		require.Len(t, linksTo(l), 3)
		connections := 0
		for _, i := range linksTo(l) {
			connections += i.Connections
			require.InDelta(t, len(conns)/3, i.Connections, 1)
		}
		require.Equal(t, len(conns), connections)
		for _, c := range conns {
			write(t, c, "over its link")
			requireNext(t, c, "over its link")
		}

		d.Config = &Config{Links: 3, Dedicated: true}
		dial(1)
		require.Len(t, linksTo(l), 4, "one of its own")
	})
}

func TestConnectionsOutliveTheirQueuePairUnlessEitherEndWantsOtherwise(t *testing.T) {
	for name, c := range map[string]struct {
		dialer, listener *Config
		outlive          bool
	}{
		"default":          {nil, nil, true},
		"another time":     {&Config{ResumeTimeout: time.Minute}, &Config{ResumeTimeout: time.Hour}, true},
		"dedicated":        {&Config{Dedicated: true}, nil, true},
		"not the dialer":   {impatient, nil, false},
		"not the listener": {nil, impatient, false},
		"neither":          {impatient, impatient, false},
	} {
		t.Run(name, func(t *testing.T) {
			n, h := simHost(t)
			client, server := connect(t, h, h.listen(t, ListenConfig{Config: c.listener}), &Dialer{Config: c.dialer})
			breakLink(n, client)
			if c.outlive {
				ask(t, client, server, 1000)
				return
			}
			for _, end := range []net.Conn{client, server} {
				_, err := end.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
			}
		})
	}
}

// For its peers a host that has lost power is like one whose cable is out.
func TestResumeTimeoutEndsConnectionsToAVanishedHost(t *testing.T) {
	const noticed = 10*time.Second + link.DefaultAckTimeout*(link.DefaultRetries+1) // at the latest
	for name, c := range map[string]struct {
		config *Config
		waits  time.Duration
	}{
		"default":      {nil, 30 * time.Second},
		"another time": {&Config{ResumeTimeout: time.Minute}, time.Minute},
		"not at all":   {impatient, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n, h := simHost(t)
				client, server := connect(t, h, h.listen(t, ListenConfig{Config: c.config}), &Dialer{Config: c.config})
				n.Cut(true)
				vanished := time.Now()
				for _, end := range []net.Conn{client, server} {
					_, err := end.Read(make([]byte, 1))
					require.ErrorIs(t, err, syscall.ETIMEDOUT)
					require.GreaterOrEqual(t, time.Since(vanished), c.waits)
					require.LessOrEqual(t, time.Since(vanished), noticed+c.waits)
				}
				require.NoError(t, client.Close(), "there is nothing more to lose")
				require.NoError(t, server.Close())
			})
		})
	}
}

// While a link has no path, the deadlines and the linger times of its connections hold as
// ever.
func TestConnectionsWithoutAPathObeyDeadlinesAndLinger(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, h := simHost(t)
		cfg := &Config{ResumeTimeout: time.Hour, Linger: 2 * time.Second}
		l := h.listen(t, ListenConfig{Config: cfg})
		var clients, servers []net.Conn
		for range 3 {
			client, server := connect(t, h, l, &Dialer{Config: cfg})
			clients, servers = append(clients, client), append(servers, server)
		}
		n.Cut(true)
		time.Sleep(time.Minute)
		CloseIdleLinks()
		require.Equal(t, 3, clients[0].(*Conn).Link().Connections, "it waits, and is not idle")

		start := time.Now()
		require.NoError(t, clients[0].SetDeadline(start.Add(time.Second)))
		_, err := clients[0].Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		_, err = clients[0].Write(make([]byte, 4<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		_, err = (&Dialer{Config: cfg, Timeout: time.Second}).Dial(h.network, l.Addr().String())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		for _, ends := range [][]net.Conn{clients, servers} {
			start = time.Now()
			for _, end := range ends {
				require.ErrorIs(t, end.Close(), syscall.ETIMEDOUT)
			}
			require.Equal(t, cfg.Linger, time.Since(start), "all of them together")
		}
		require.NoError(t, l.Close())
		require.NotZero(t, n.Open(), "the peers are yet to be told")
		time.Sleep(cfg.ResumeTimeout)
		require.Zero(t, n.Open(), "nobody waits any more")
	})
}

func TestLinksByDefaultAreOneForEightProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for procs, want := range map[int]int{1: 1, 2: 1, 8: 1, 15: 1, 16: 2, 64: 8, 128: 8} {
		runtime.GOMAXPROCS(procs)
		require.Equal(t, want, (*Config)(nil).MostLinks(), "%d processors", procs)
		require.Equal(t, want, new(Config).MostLinks(), "%d processors", procs)
	}
	require.Equal(t, 5, (&Config{Links: 5}).MostLinks())
	require.Equal(t, 1, (&Config{Links: 5, Dedicated: true}).MostLinks())
}

// older is an endpoint of a dialer that asks for a link without a connection, as those before
// 0.1.0 did, which confirm no other.
type older struct{ fabric.Endpoint }

func (e older) Connect(ctx context.Context, request []byte) ([]byte, error) {
	const at, withoutConnection = 7, 1 << 1 // of the features
	request[at] |= withoutConnection
	answer, err := e.Endpoint.Connect(ctx, request)
	if err == nil && answer[at]&withoutConnection == 0 {
		err = errors.Join(errDied, e.Reject(wire.Reject{Reason: "not the answer"}.Append(nil)))
	}
	return answer, err
}

// A listener does not know what an older dialer asks for, and the dialer goes on with the links that
// it has: nothing is accepted, and no place stays taken.
func TestALinkWithoutAConnectionIsNotMade(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		l := h.listen(t, ListenConfig{Config: small, Backlog: 2})
		d := &Dialer{Config: small}
		c, s := connect(t, h, l, d)
		cfg, err := link.NewSetup((*link.Config)(small))
		require.NoError(t, err)
		n := networks[h.network]
		f, err := n.Open(nil, nil)
		require.NoError(t, err)
		for range 3 {
			ep, err := f.Dial(t.Context(), netip.AddrPort{}, l.Addr().(Addr).AddrPort())
			require.NoError(t, err)
			_, err = link.Dial(t.Context(), older{ep}, cfg)
			require.ErrorIs(t, err, errDied)
			hang.Unless(t, func() bool { return l.listener.Taken() == 0 }) // the listener knows it, too
		}
		requireNothingElse(t, l)
		ask(t, c, s, 1000)
		connect(t, h, l, d)
		require.Len(t, linksTo(l), 1)
	})
}

// Each dial of a Dialer with TrustUser opens a fabric of its own. Its connections share a
// link all the same, but none with another Dialer, whose TrustUser may decide otherwise.
func TestConnectionsOfADialerThatTrustsShareALink(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		l := h.listen(t, ListenConfig{})
		go echoAll(l)
		trusting := func() *Dialer { return &Dialer{TrustUser: func(uint32) bool { return true }} }
		d, other := trusting(), trusting()
		for _, d := range []*Dialer{d, d, d, other} {
			dial(t, d, h.network, l.Addr().String())
		}
		var connections []int
		for _, i := range linksTo(l) {
			if i.Connections > 0 { // others are of another test, at the same address
				connections = append(connections, i.Connections)
			}
		}
		require.ElementsMatch(t, []int{3, 1}, connections)
	})
}

// A Dialer that trusts opens another fabric for each dial, so its links are not known by these.
func TestConnectionsOfADialerThatTrustsKeepToTheirNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		d := &Dialer{TrustUser: func(uint32) bool { return true }}
		for _, name := range []string{"one", "other"} { // which have the same addresses
			addNetwork(t, name, namedNetwork{&transport.Network{Name: name, Open: opens(sim.New(sim.Link{}))}, "ip"})
			l, err := Listen(name, "10.0.0.1:80")
			require.NoError(t, err)
			defer l.Close()
			c := dial(t, d, name, "10.0.0.1:80")
			require.Equal(t, name, c.(*Conn).Carrier())
			write(t, c, name)
			requireNext(t, accept(t, l), name)
		}
	})
}

// If the peer's application does not close, the times that its stream and that the link
// wait for it pass at the same moment, while this side wakes the peer for what it has posted.
func TestALinkEndsWhileItsPeerIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		f := &hooked{Fabric: sim.New(sim.Link{Latency: time.Millisecond}), ring: func() { time.Sleep(10 * time.Millisecond) }}
		addNetwork(t, "slow", namedNetwork{&transport.Network{Name: "slow", Open: opens(f)}, "ip"})
		h := host{"slow", "10.0.0.1"}
		l := h.listen(t, ListenConfig{Config: small})
		for range 20 {
			c, s := connect(t, h, l, &Dialer{Config: smallDedicated})
			require.NoError(t, c.Close())
			time.Sleep(20 * time.Second)
			require.NoError(t, s.Close())
		}
	})
}

// The links of a listener that is closed leave, at both ends: those that carry nothing at
// once, and the others when their last connection has been closed.
func TestLinksOfAListenerThatIsClosedLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: time.Millisecond})
		simulate(t, n)
		const soon = time.Second
		h := host{"sim", "10.0.0.1"}
		for range 3 {
			l := h.listen(t, ListenConfig{})
			c, s := connect(t, h, l, &Dialer{})
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
			time.Sleep(soon)
			require.Greater(t, n.Open(), 1, "the link is kept for another connection")
			require.NoError(t, l.Close())
			time.Sleep(soon)
			require.Zero(t, n.Open(), "the listener is closed, and the link carries nothing")
		}

		l := h.listen(t, ListenConfig{})
		c, s := connect(t, h, l, &Dialer{})
		require.NoError(t, l.Close())
		time.Sleep(time.Hour)
		write(t, s, "x")
		requireNext(t, c, "x")
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		time.Sleep(soon)
		require.Zero(t, n.Open(), "the listener is closed, and the last connection")
	})
}
