package ringnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// counted returns a fabric that counts the calls of Dial.
func counted(f fabric.Fabric) (_ *hooked, dials *atomic.Int32) {
	dials = new(atomic.Int32)
	return &hooked{Fabric: f, dial: func() { dials.Add(1) }}, dials
}

func TestAutoRemembersForAMinuteWhatOnlyTCPConnects(t *testing.T) {
	shm, shmDials := counted(sim.New(sim.Link{}))
	rdma, rdmaDials := counted(sim.New(sim.Link{}))
	better(t, shm, rdma)
	server := listenTCP(t, "127.0.0.1:0")
	for range 3 {
		c := dialAuto(t, Dialer{}, server.Addr().String())
		requireCodes(t, c, ReasonNoListener, ReasonNoListener)
		requireReasons(t, c, "shm: connect: connection refused", "rdma: connect: connection refused")
	}
	require.EqualValues(t, 1, shmDials.Load())
	require.EqualValues(t, 1, rdmaDials.Load())
	remember := func(d time.Duration) { setAutoTimes(t, func(times *auto.Times) { times.Remember = d }) }
	remember(0)
	dialAuto(t, Dialer{}, server.Addr().String())
	require.EqualValues(t, 2, shmDials.Load())
	remember(time.Hour)

	// A failure at one address does not count for another.
	dialAuto(t, Dialer{}, listenTCP(t, "127.0.0.1:0").Addr().String())
	require.EqualValues(t, 3, shmDials.Load())
}

// Only the first dial waits for a silent network.
func TestAutoRemembersASilentNetwork(t *testing.T) {
	rdma := sim.New(sim.Link{})
	rdma.Blackhole(netip.MustParseAddr("127.0.0.1"))
	f, dials := counted(rdma)
	better(t, nil, f)
	delayTCP(t, time.Second)
	server := listenTCP(t, "127.0.0.1:0")
	for range 3 {
		c := dialAuto(t, Dialer{}, server.Addr().String())
		requireCodes(t, c, ReasonOther, ReasonSilent)
		delayTCP(t, time.Hour) // the test would take hours if auto waited again
	}
	require.EqualValues(t, 1, dials.Load())
}

// If TCP does not connect either, the peer may not have started yet.
func TestAutoRemembersNothingOfAPeerThatIsNotThere(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	address := anyPort(t).String()
	_, err := Dial("auto", address)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	requireCarried(t, listenAuto(t, address), Dialer{}, "shm")
}

func TestAutoResolvesANameOnce(t *testing.T) {
	better(t, sim.New(sim.Link{}), sim.New(sim.Link{}))
	server := listenTCP(t, "127.0.0.1:0")
	var queries [2]atomic.Int32
	d := func(count *atomic.Int32) *net.Resolver {
		names := resolver("127.0.0.1")
		answer := names.Dial
		names.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			count.Add(1)
			return answer(ctx, network, address)
		}
		return names
	}
	address := "host.example:" + port(t, server)
	c, err := (&net.Dialer{Resolver: d(&queries[0])}).Dial("tcp", address)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	c, err = (&Dialer{Resolver: d(&queries[1])}).Dial("auto", address)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, queries[0].Load(), queries[1].Load())
}

func TestNetworksVariable(t *testing.T) {
	better(t, sim.New(sim.Link{}), sim.New(sim.Link{}))
	l := listenAuto(t, "127.0.0.1:0")
	for value, want := range map[string]struct {
		network string
		codes   []ReasonCode
	}{
		"":             {"shm", nil},
		"shm,rdma,tcp": {"shm", nil},
		"rdma,shm,tcp": {"rdma", nil},
		"rdma,tcp":     {"rdma", []ReasonCode{ReasonSwitchedOff}},
		"rdma":         {"rdma", []ReasonCode{ReasonSwitchedOff}},
		"tcp":          {"tcp", []ReasonCode{ReasonSwitchedOff, ReasonSwitchedOff}},
	} {
		t.Setenv(auto.NetworksEnv, value)
		c := dialAuto(t, Dialer{}, l.Addr().String())
		require.Equal(t, want.network, carrierOf(c), "%q", value)
		requireCodes(t, c, want.codes...)
		requireConnected(t, c, l)
	}
	requireNothingElse(t, l)

	t.Setenv(auto.NetworksEnv, "rdma")
	l = listenAuto(t, "127.0.0.1:0")
	require.Len(t, l.PassedOver(), 1)
	require.Equal(t, "shm", l.PassedOver()[0].Network)
	require.Equal(t, ReasonSwitchedOff, l.PassedOver()[0].Code)
	t.Setenv(auto.NetworksEnv, "")
	requireCarried(t, l, Dialer{}, "rdma")
}

func TestNetworksVariableOfNonsenseIsAnError(t *testing.T) {
	for value, want := range map[string]string{
		"ib":       `RINGNET_NETWORKS is "ib": want some of shm, rdma and tcp, separated by commas`,
		"shm, tcp": `RINGNET_NETWORKS is "shm, tcp": want some of`,
		"shm,shm":  `RINGNET_NETWORKS is "shm,shm": shm is named twice`,
		"tcp,shm":  `RINGNET_NETWORKS is "tcp,shm": tcp must come last`,
	} {
		t.Setenv(auto.NetworksEnv, value)
		_, err := Dial("auto", "127.0.0.1:1")
		require.ErrorContains(t, err, want)
		_, err = Listen("auto", "127.0.0.1:0")
		require.ErrorContains(t, err, want)
	}
}

func TestRequireIsAnErrorInsteadOfAFallBack(t *testing.T) {
	better(t, sim.New(sim.Link{}), sim.New(sim.Link{}))
	l := listenAuto(t, "127.0.0.1:0")
	requireCarried(t, l, Dialer{Require: []string{"rdma"}}, "rdma")
	requireCarried(t, l, Dialer{Require: []string{"rdma", "shm"}}, "shm")

	server := listenTCP(t, "127.0.0.1:0")
	_, err := (&Dialer{Require: []string{"rdma"}}).Dial("auto", server.Addr().String())
	require.EqualError(t, err, "dial auto "+server.Addr().String()+": no required network is available: "+
		"shm: switched off by RINGNET_NETWORKS or Require; rdma: connect: connection refused")
	var reason Reason
	require.ErrorAs(t, err, &reason)
	require.Equal(t, ReasonSwitchedOff, reason.Code)
	t.Setenv(auto.NetworksEnv, "shm") // without tcp it requires the others
	_, err = Dial("auto", server.Addr().String())
	require.EqualError(t, err, "dial auto "+server.Addr().String()+": no required network is available: "+
		"shm: connect: connection refused; rdma: switched off by RINGNET_NETWORKS or Require")
	requireNothingElse(t, server)
	_, err = (&Dialer{Require: []string{"tcp"}}).Dial("auto", server.Addr().String())
	require.ErrorContains(t, err, `Dialer.Require has "tcp": want shm or rdma`)
}

func TestRequireOfAListener(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	lc := ListenConfig{Require: []string{"shm"}}
	l := listen(t, lc, "auto", "127.0.0.1:0")
	require.NoError(t, l.Close())
	lc.Require = []string{"shm", "rdma"}
	_, err := lc.Listen(t.Context(), "auto", l.Addr().String())
	require.EqualError(t, err, "listen auto "+l.Addr().String()+": no required network is available: rdma: absent in this test")
	listenAuto(t, l.Addr().String()) // the failed Listen holds no port
	lc.Require = []string{"ib"}
	_, err = lc.Listen(t.Context(), "auto", "127.0.0.1:0")
	require.ErrorContains(t, err, `ListenConfig.Require has "ib": want shm or rdma`)
	lc.Require = []string{"rdma"}
	_, err = lc.ListenOn(listenTCP(t, "127.0.0.1:0"))
	require.ErrorContains(t, err, "no required network is available: rdma: absent in this test")
}

func TestAutoOfOneFamily(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	for network, host := range map[string]string{"auto4": "127.0.0.1", "auto6": "::1"} {
		l, err := Listen(network, net.JoinHostPort(host, "0"))
		if host == "::1" && err != nil {
			t.Skipf("no IPv6 here: %v", err)
		}
		require.NoError(t, err)
		defer l.Close()
		d := Dialer{Resolver: resolver("127.0.0.1", "::1")}
		c := dial(t, &d, network, "host.example:"+port(t, l))
		require.Equal(t, "shm", carrierOf(c))
		require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
		requireConnected(t, c, l)
	}
	_, err := Dial("auto6", "127.0.0.1:80")
	require.ErrorContains(t, err, "no suitable address")
	_, err = (&Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv6loopback}}).Dial("auto", "127.0.0.1:80")
	require.ErrorContains(t, err, "no address of the local address's family")
}

// A name with an address where nobody listens, and both families: the other one is dialed when the
// first has failed, and when it has been silent for FallbackDelay.
func TestAutoTriesAddressesAsTCPDoes(t *testing.T) {
	shm := sim.New(sim.Link{})
	better(t, shm, nil)
	l := listenAuto(t, "127.0.0.1:0")
	dial := func(fallback time.Duration, addrs ...string) {
		d := Dialer{Resolver: resolver(addrs...), Require: []string{"shm"}, TCP: &net.Dialer{FallbackDelay: fallback}}
		c := dialAuto(t, d, "host.example:"+port(t, l))
		require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
		requireConnected(t, c, l)
		CloseIdleLinks()
	}
	dial(0, "127.0.0.2", "127.0.0.1")
	dial(time.Hour, "127.0.0.1", "::1")
	shm.Blackhole(netip.IPv6Loopback())
	dial(time.Millisecond, "127.0.0.1", "::1")
}

// As with TCP, a program may listen at all addresses of one family, and another program, or
// another listener of the same, at those of the other.
func TestAutoListensAtAllAddressesOfOneFamily(t *testing.T) {
	delayTCP(t, time.Hour)
	forget(t)
	shm, err := Listen("shm", "127.0.0.1:0")
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, shm.Close())
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skipf("no IPv6 here: %v", err)
	} else {
		require.NoError(t, l.Close())
	}
	listenOn := func(network, address string) (net.Listener, error) {
		l, err := net.Listen("tcp"+strings.TrimPrefix(network, "auto"), address)
		if err != nil {
			return nil, err
		}
		return new(ListenConfig).ListenOn(l.(*net.TCPListener))
	}
	for name, listen := range map[string]func(network, address string) (net.Listener, error){"Listen": Listen, "ListenOn": listenOn} {
		t.Run(name, func(t *testing.T) {
			l4, err := listen("auto4", ":0")
			require.NoError(t, err)
			defer l4.Close()
			l6, err := listen("auto6", ":"+port(t, l4))
			require.NoError(t, err)
			defer l6.Close()
			for host, l := range map[string]net.Listener{"127.0.0.1": l4, "::1": l6} {
				c := dialAuto(t, Dialer{}, net.JoinHostPort(host, port(t, l)))
				require.Equal(t, "shm", carrierOf(c))
				requireConnected(t, c, l)
			}
		})
	}
}

// Options of TCP sockets are set on those of auto, and a link is made all the same.
func TestAutoHasTheOptionsOfItsTCPLeg(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	var dialed, listened, dialedWith atomic.Int32
	lc := ListenConfig{TCP: &net.ListenConfig{Control: func(string, string, syscall.RawConn) error {
		listened.Add(1)
		return nil
	}}}
	l := listen(t, lc, "auto", "127.0.0.1:0")
	d := Dialer{TCP: &net.Dialer{Control: func(string, string, syscall.RawConn) error {
		dialed.Add(1)
		return nil
	}}}
	requireCarried(t, l, d, "shm")
	require.EqualValues(t, 1, listened.Load())
	require.EqualValues(t, 1, dialed.Load())

	server := listenTCP(t, "127.0.0.1:0")
	d.TCP.ControlContext = func(context.Context, string, string, syscall.RawConn) error {
		dialedWith.Add(1)
		return nil
	}
	require.Equal(t, "tcp", dialAuto(t, d, server.Addr().String()).Carrier())
	require.EqualValues(t, 1, dialed.Load(), "ControlContext goes before Control")
	require.NotZero(t, dialedWith.Load())

	d.TCP = &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}
	for carrier, to := range map[string]net.Addr{"shm": l.Addr(), "tcp": server.Addr()} {
		c := dialAuto(t, d, to.String())
		require.Equal(t, carrier, c.Carrier())
		require.Equal(t, "127.0.0.3", c.LocalAddr().(*net.TCPAddr).IP.String())
	}
}

// What auto remembers of a network saves time before TCP is dialed. A dial that may not take TCP asks again.
func TestAutoAsksARequiredNetworkWhateverItRemembers(t *testing.T) {
	shm, dials := counted(sim.New(sim.Link{}))
	better(t, shm, nil)
	server := listenTCP(t, "127.0.0.1:0")
	for range 2 {
		requireConnected(t, dialAuto(t, Dialer{}, server.Addr().String()), server)
		require.EqualValues(t, 1, dials.Load(), "it is remembered")
	}
	_, err := (&Dialer{Require: []string{"shm"}}).Dial("auto", server.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.EqualValues(t, 2, dials.Load())
}
