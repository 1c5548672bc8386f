package ringnet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
)

// host is where a test listens: a network's name and a host of that network.
type host struct{ network, ip string }

// any asks for a free port.
func (h host) any() string { return net.JoinHostPort(h.ip, "0") }

// overEachNetwork runs a test over a simulated network, over shm, and over rdma
// where there is a device.
func overEachNetwork(t *testing.T, test func(t *testing.T, h host)) {
	setAutoTimes(t, func(times *auto.Times) { times.Answer = hang.After }) // no dial passes over a link, however slow the machine
	t.Run("sim", func(t *testing.T) {
		simulate(t, sim.New(sim.Link{}))
		test(t, host{"sim", "10.0.0.1"})
	})
	t.Run("shm", func(t *testing.T) { test(t, shmHost(t)) })
	t.Run("rdma", func(t *testing.T) { test(t, rdmaHost(t)) })
}

// simulate makes the networks "sim", "sim4" and "sim6" for the length of a test.
func simulate(t *testing.T, n *sim.Network) {
	for name, family := range map[string]hostport.Family{"sim": "ip", "sim4": "ip4", "sim6": "ip6"} {
		addNetwork(t, name, namedNetwork{&transport.Network{Name: "sim", Open: opens(n)}, family})
	}
}

// addNetwork adds a network for the length of a test, or has it take the place of the one of
// that name.
func addNetwork(t *testing.T, name string, n namedNetwork) {
	before, had := networks[name]
	networks[name] = n
	t.Cleanup(func() {
		delete(networks, name)
		if had {
			networks[name] = before
		}
	})
}

// opens returns how a network opens a fabric that there is already.
func opens(f fabric.Fabric) func(transport.Trust, *link.Config) (fabric.Fabric, error) {
	return func(transport.Trust, *link.Config) (fabric.Fabric, error) { return f, nil }
}

// shmHost is an address of this host, on systems that have shm.
func shmHost(t *testing.T) host {
	if _, err := transport.SHM.Open(nil, nil); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	return host{"shm", "127.0.0.1"}
}

// rdmaHost is an address of an RDMA device.
func rdmaHost(t *testing.T) host {
	addr := os.Getenv("SOFTROCE_ADDR")
	if addr == "" {
		if os.Getenv("RINGNET_REQUIRE_RDMA") != "" {
			t.Fatal("RINGNET_REQUIRE_RDMA is set, but not SOFTROCE_ADDR")
		}
		t.Skip("no RDMA device: SOFTROCE_ADDR is not set; bin/softroce runs this where there is one")
	}
	return host{"rdma", addr}
}

// simHost makes a simulated network, and returns a host of it, too.
func simHost(t *testing.T) (*sim.Network, host) {
	n := sim.New(sim.Link{})
	simulate(t, n)
	return n, host{"sim", "10.0.0.1"}
}

// listen listens until the end of the test.
func (h host) listen(t *testing.T, lc ListenConfig) *Listener {
	t.Helper()
	return listen(t, lc, h.network, h.any()).(*Listener)
}

// listen listens until the end of the test.
func listen(t *testing.T, lc ListenConfig, network, address string) net.Listener {
	t.Helper()
	l, err := lc.Listen(t.Context(), network, address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// dial dials until the end of the test.
func dial(t *testing.T, d *Dialer, network, address string) net.Conn {
	t.Helper()
	c, err := d.Dial(network, address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// accept accepts until the end of the test.
func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// dialTCP connects by package net until the end of the test, from a local address or any.
func dialTCP(t *testing.T, from *net.TCPAddr, address string) net.Conn {
	t.Helper()
	var d net.Dialer
	if from != nil {
		d.LocalAddr = from
	}
	c, err := d.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// requireNext requires that a text arrives next.
func requireNext(t *testing.T, c io.Reader, text string) {
	t.Helper()
	got := make([]byte, len(text))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

// requireRest requires that a text arrives, and then the end.
func requireRest(t *testing.T, c io.Reader, text string) {
	t.Helper()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

// write writes a text.
func write(t testing.TB, c io.Writer, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
}

// A listener without a host accepts on every address.
func TestDialThenAcceptInOneGoroutine(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		for _, address := range []string{h.any(), "", ":0", "0.0.0.0:0", "[::]:0"} {
			l := listen(t, ListenConfig{}, h.network, address)
			at := net.JoinHostPort(h.ip, port(t, l))
			client := dial(t, &Dialer{}, h.network, at)
			server := accept(t, l)
			write(t, client, "hello")
			require.NoError(t, client.Close())
			requireRest(t, server, "hello")

			require.Equal(t, h.network, carrierOf(server))
			require.Equal(t, at, server.LocalAddr().String(), address)
			require.Equal(t, server.LocalAddr(), client.RemoteAddr())
			require.Equal(t, client.LocalAddr(), server.RemoteAddr())
		}
	})
}

func TestDialWhereNobodyListensIsRefused(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		l := h.listen(t, ListenConfig{})
		addr := l.Addr().String()
		require.NoError(t, l.Close())
		before := Totals()
		_, err := Dial(h.network, addr)
		requireOpError(t, err, "dial", h.network, addr, syscall.ECONNREFUSED)
		require.Equal(t, map[ReasonCode]uint64{ReasonNoListener: 1}, since(before, h.network).DialsFailed)
	})
}

func TestAddrHasTheZone(t *testing.T) {
	simulate(t, sim.New(sim.Link{}))
	l := listen(t, ListenConfig{}, "sim6", "[fe80::1%eth7]:0")
	require.Contains(t, l.Addr().String(), "[fe80::1%eth7]:")
	c := dial(t, &Dialer{}, "sim", l.Addr().String())
	require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
	_, err := Dial("sim4", l.Addr().String())
	require.ErrorContains(t, err, "no suitable address")
}

func TestListenOnAPortInUse(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		for _, hosts := range [][2]string{{"", ""}, {"", h.ip}, {h.ip, ""}, {h.ip, h.ip}} {
			first, err := Listen(h.network, net.JoinHostPort(hosts[0], "0"))
			require.NoError(t, err)
			_, port, err := net.SplitHostPort(first.Addr().String())
			require.NoError(t, err)
			_, err = Listen(h.network, net.JoinHostPort(hosts[1], port))
			require.ErrorIs(t, err, syscall.EADDRINUSE, hosts)
			require.IsType(t, &net.OpError{}, err)
			require.NoError(t, first.Close())
		}
	})
}

func TestDialFromALocalAddress(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		l := h.listen(t, ListenConfig{})
		freePort := func() int {
			free := h.listen(t, ListenConfig{})
			require.NoError(t, free.Close())
			return int(free.Addr().(Addr).AddrPort().Port())
		}
		ip := net.ParseIP(h.ip)
		for _, local := range []*net.TCPAddr{{IP: ip, Port: freePort()}, {IP: ip}, {Port: freePort()}} {
			c := dial(t, &Dialer{LocalAddr: local}, h.network, l.Addr().String())
			at := c.LocalAddr().(Addr).AddrPort()
			require.Equal(t, h.ip, at.Addr().String())
			require.Contains(t, []int{0, int(at.Port())}, local.Port)
		}
		if h.network != "sim" { // where every address is this host's
			_, err := (&Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 77)}}).Dial(h.network, l.Addr().String())
			require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		}
	})
}

func TestDialObeysItsTimeoutAndItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		simulate(t, n)
		n.Blackhole(netip.MustParseAddr("10.0.0.9"))
		const silent, limit = "10.0.0.9:80", 10 * time.Second
		start := time.Now()
		_, err := DialTimeout("sim", silent, limit)
		requireOpError(t, err, "dial", "sim", silent, os.ErrDeadlineExceeded)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, err.(net.Error).Timeout())
		require.Equal(t, limit, time.Since(start))

		_, err = (&Dialer{Deadline: time.Now().Add(-time.Second)}).Dial("sim", silent)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err = (&Dialer{}).DialContext(ctx, "sim", silent)
		requireOpError(t, err, "dial", "sim", silent, context.Canceled)

		// Dials that wait for the link of the first dial fail with it. They do not ask the host
		// again, one after the other.
		start = time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := (&Dialer{Config: &Config{HandshakeTimeout: limit}}).Dial("sim", silent)
				requireOpError(t, err, "dial", "sim", silent, os.ErrDeadlineExceeded)
			})
		}
		all.Wait()
		require.Equal(t, limit, time.Since(start))
	})
}

func TestDialTriesTheAddressesOfANameInTurn(t *testing.T) {
	// Package net makes a channel at its first look-up, which must not be made in a bubble.
	_, err := resolver("10.0.0.1").LookupNetIP(t.Context(), "ip4", "host.example")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		simulate(t, n)
		n.Blackhole(netip.MustParseAddr("10.0.0.9"))
		l := host{"sim", "10.0.0.1"}.listen(t, ListenConfig{})
		_, port, err := net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)

		// 10.0.0.2 refuses; 10.0.0.9 is silent, and gets half of the time.
		d := Dialer{Resolver: resolver("10.0.0.2", "10.0.0.9", "10.0.0.1"), Timeout: 10 * time.Second}
		start := time.Now()
		c, err := d.Dial("sim", net.JoinHostPort("host.example", port))
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, time.Since(start))
		require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
		require.NoError(t, c.Close())
		time.Sleep(2 * time.Minute) // the link idles out
	})
}

// resolver resolves every name to the given IPv4 addresses.
func resolver(addrs ...string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go answer(server, addrs)
		return client, nil
	}}
}

// answer answers one query as a name server does over TCP.
func answer(c net.Conn, addrs []string) {
	defer c.Close()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, query); err != nil {
		return
	}
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return
	}
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	for _, addr := range addrs {
		var body dnsmessage.ResourceBody
		switch a := netip.MustParseAddr(addr); {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			body = &dnsmessage.AResource{A: a.As4()}
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			body = &dnsmessage.AAAAResource{AAAA: a.As16()}
		default:
			continue
		}
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
			Body:   body,
		})
	}
	reply, err := m.Pack()
	if err != nil {
		return
	}
	_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
}

func TestErrorsWithoutRDMASayWhatToDo(t *testing.T) {
	if os.Getenv("SOFTROCE_ADDR") != "" {
		t.Skip("there is an RDMA device")
	}
	_, dialed := Dial("rdma", "127.0.0.1:1")
	_, listened := Listen("rdma", "127.0.0.1:0")
	for _, err := range []error{dialed, listened} {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.IsType(t, &net.OpError{}, err)
		require.ErrorContains(t, err, "RDMA")
	}
}

// requireOpError requires package net's error for the operation, around the given cause.
func requireOpError(t *testing.T, err error, op, network, addr string, cause error) {
	t.Helper()
	var e *net.OpError
	require.ErrorAs(t, err, &e)
	require.Same(t, e, err, "a bare *net.OpError")
	require.Equal(t, op, e.Op)
	require.Equal(t, network, e.Net)
	require.Equal(t, addr, e.Addr.String())
	require.ErrorIs(t, err, cause)
}
