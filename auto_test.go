package ringnet

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
)

var errAbsent = errors.New("absent in this test")

// better replaces shm and rdma by simulated networks; nil means that the network is absent. Auto
// waits for them however slow the machine is.
func better(t *testing.T, shm, rdma fabric.Fabric) {
	forget(t)
	delayTCP(t, time.Hour)
	for name, f := range map[string]fabric.Fabric{"shm": shm, "rdma": rdma} {
		open := opens(f)
		if f == nil {
			open = func(transport.Trust, *link.Config) (fabric.Fabric, error) { return nil, errAbsent }
		}
		addNetwork(t, name, namedNetwork{&transport.Network{Name: name, Open: open}, "ip"})
	}
}

// delayTCP has auto dial TCP only after the given time. If that is longer than the times for
// proofs, and for TCP to connect for one, these get as long; proveWithin after that gives proofs
// less.
func delayTCP(t testing.TB, delay time.Duration) {
	setAutoTimes(t, func(times *auto.Times) {
		times.Answer = delay
		times.Proof = max(times.Proof, delay)
		times.Connect = max(times.Connect, delay)
	})
}

// setAutoTimes changes how long auto waits.
func setAutoTimes(t testing.TB, set func(*auto.Times)) {
	before := autoTimes
	set(&autoTimes)
	t.Cleanup(func() { autoTimes = before })
}

// onlySHM has auto do without rdma, whatever this machine has.
func onlySHM(t *testing.T) {
	f, err := transport.SHM.Open(nil, nil)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	better(t, f, nil)
}

func listenAuto(t *testing.T, address string) *AutoListener {
	t.Helper()
	return listen(t, ListenConfig{}, "auto", address).(*AutoListener)
}

// carrierOf returns the network that carries a connection.
func carrierOf(c net.Conn) string { return c.(interface{ Carrier() string }).Carrier() }

// requireCarried requires that a connection dialed to l is carried by the named network,
// that Accept returns it and nothing else, and that bytes pass.
func requireCarried(t *testing.T, l net.Listener, d Dialer, network string) *AutoConn {
	t.Helper()
	c := dialAuto(t, d, l.Addr().String())
	require.Equal(t, network, c.Carrier())
	requireConnected(t, c, l)
	requireNothingElse(t, l)
	return c
}

// Networks that are worse than the one that carries a connection are passed over at neither end.
func TestAutoTakesTheBestNetworkThatBothSidesHave(t *testing.T) {
	shm, rdma := sim.New(sim.Link{}), sim.New(sim.Link{})
	for _, has := range []struct {
		shm, rdma  fabric.Fabric
		carrier    string
		netConn    net.Conn
		absent     int
		passedOver []string
	}{
		{shm, rdma, "shm", &Conn{}, 0, nil},
		{shm, nil, "shm", &Conn{}, 1, nil},
		{nil, rdma, "rdma", &Conn{}, 1, []string{"shm: absent"}},
		{nil, nil, "tcp", &net.TCPConn{}, 2, []string{"shm: absent", "rdma: absent"}},
	} {
		better(t, has.shm, has.rdma)
		l := listenAuto(t, "127.0.0.1:0")
		require.Len(t, l.PassedOver(), has.absent)
		c := dialAuto(t, Dialer{}, l.Addr().String())
		for _, end := range []*AutoConn{c, accept(t, l).(*AutoConn)} {
			require.Equal(t, has.carrier, end.Carrier())
			requireReasons(t, end, has.passedOver...)
			require.IsType(t, has.netConn, end.NetConn())
		}
		requireNothingElse(t, l)
	}
}

// fourTimesAsLong is a timeout of which auto takes a quarter to wait for better networks. The
// rest is enough for TCP, and a quarter for any other, on a busy machine.
const fourTimesAsLong = 20 * time.Second

func TestAutoTakesTCPWhenABetterNetworkDoesNotAnswerInTime(t *testing.T) {
	silent, slow := sim.New(sim.Link{}), sim.New(sim.Link{Latency: hang.After})
	silent.Blackhole(netip.MustParseAddr("127.0.0.1"))
	for _, c := range []struct {
		rdma   *sim.Network
		answer time.Duration
		d      Dialer
	}{
		{silent, auto.DefaultTimes.Answer, Dialer{}},
		{slow, auto.DefaultTimes.Answer, Dialer{}},
		{silent, time.Hour, Dialer{Timeout: fourTimesAsLong}},
	} {
		better(t, nil, c.rdma)
		delayTCP(t, c.answer)
		l := listenAuto(t, "127.0.0.1:0")
		requireReasons(t, requireCarried(t, l, c.d, "tcp"), "shm: absent", "rdma: TCP was connected first")
	}
}

// The faster network carries the connection. What the listener accepts on a slower one has
// been reset by the dialer.
func TestAutoIsAcceptedAsItWasDialedWhoeverIsFaster(t *testing.T) {
	better(t, sim.New(sim.Link{}), sim.New(sim.Link{}))
	l := listenAuto(t, "127.0.0.1:0")
	for range 100 {
		delayTCP(t, rand.N(300*time.Microsecond))
		c, err := Dial("auto", l.Addr().String())
		require.NoError(t, err)
		for {
			s, err := l.Accept()
			require.NoError(t, err)
			if c.LocalAddr() == s.RemoteAddr() || c.LocalAddr().String() == s.RemoteAddr().String() {
				require.NoError(t, s.Close())
				break
			}
			require.NotEqual(t, "tcp", carrierOf(s))
			_, err = s.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, s.Close())
		}
		require.NoError(t, c.Close())
	}
}

// If the better network fails at Confirm, auto uses the TCP connection that was to prove
// the link.
func TestAutoTakesTCPWhenTheNetworkThatAnsweredHasFallen(t *testing.T) {
	var failed atomic.Bool
	f := &hooked{Fabric: sim.New(sim.Link{}), confirm: func(func() error) error {
		failed.Store(true)
		return fabric.ErrDisconnected
	}}
	better(t, f, sim.New(sim.Link{}))
	l := listenAuto(t, "127.0.0.1:0")
	requireReasons(t, requireCarried(t, l, Dialer{}, "tcp"), "shm: connection reset by peer", "rdma: TCP was connected first")
	require.True(t, failed.Load())
}

// temporary is the deprecated method of net.Error, which package net's errors have.
type temporary interface{ Temporary() bool }

func requireReasons(t *testing.T, c *AutoConn, reasons ...string) {
	t.Helper()
	require.Len(t, c.PassedOver(), len(reasons))
	for i, reason := range reasons {
		require.True(t, strings.HasPrefix(c.PassedOver()[i].Error(), reason), "%v", c.PassedOver()[i])
	}
}

func TestAutoRefusesAPortThatIsTakenInAnyPortSpace(t *testing.T) {
	for _, squatted := range auto.BetterThanTCP {
		shm, rdma := sim.New(sim.Link{}), sim.New(sim.Link{})
		better(t, shm, rdma)
		address := anyPort(t).String()
		squatter, err := Listen(squatted, address)
		require.NoError(t, err)

		_, err = Listen("auto", address)
		requireOpError(t, err, "listen", "auto", address, syscall.EADDRINUSE)
		require.ErrorContains(t, err, squatted)
		require.NoError(t, squatter.Close())
		listenAuto(t, address) // the failed Listen holds no port
	}
}

func TestAutoFindsAPortThatIsFreeInEveryPortSpace(t *testing.T) {
	inUse := 3
	f := &hooked{Fabric: sim.New(sim.Link{}), listen: func(listen func() (fabric.Listener, error)) (fabric.Listener, error) {
		if inUse > 0 {
			inUse--
			return nil, syscall.EADDRINUSE
		}
		return listen()
	}}
	better(t, nil, f)
	l := listenAuto(t, "127.0.0.1:0")
	require.Zero(t, inUse)
	requireCarried(t, l, Dialer{}, "rdma")
}

func TestAutoErrorIsTCPsWithTheReasonsBehindIt(t *testing.T) {
	better(t, nil, sim.New(sim.Link{}))
	address := anyPort(t).String()
	_, err := Dial("auto", address)
	requireOpError(t, err, "dial", "auto", address, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "passed over: shm: absent in this test; rdma: connect: connection refused")
	for name, deadline := range map[string]time.Time{"refused": {}, "timed out": time.Now().Add(-time.Second)} {
		_, tcp := (&net.Dialer{Deadline: deadline}).Dial("tcp", address)
		_, auto := (&Dialer{Deadline: deadline}).Dial("auto", address)
		require.Equal(t, tcp.(net.Error).Timeout(), auto.(net.Error).Timeout(), name)
		require.Equal(t, tcp.(temporary).Temporary(), auto.(temporary).Temporary(), name)
	}

	silent := sim.New(sim.Link{})
	silent.Blackhole(netip.MustParseAddr("127.0.0.1"))
	better(t, nil, silent)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = new(Dialer).DialContext(ctx, "auto", address)
	require.ErrorIs(t, err, context.Canceled)

	// Soon after TCP, though a better network could wait for long.
	delayTCP(t, auto.DefaultTimes.Answer)
	_, err = (&Dialer{Config: &Config{HandshakeTimeout: time.Hour}, Timeout: 10 * time.Minute}).Dial("auto", address)
	requireOpError(t, err, "dial", "auto", address, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "rdma: the dial ended before this network was connected")
}

// TCP's deadline is such an error, as a lack of descriptors is.
func TestAutoListenerGoesOnAfterATemporaryErrorOfTCP(t *testing.T) {
	better(t, nil, nil)
	l := listenAuto(t, "127.0.0.1:0")
	require.NoError(t, l.listener.TCP.SetDeadline(time.Now().Add(-time.Second)))
	for range 3 {
		_, err := l.Accept()
		requireOpError(t, err, "accept", "auto", l.Addr().String(), os.ErrDeadlineExceeded)
	}
	require.NoError(t, l.listener.TCP.SetDeadline(time.Time{}))
	c := dialAuto(t, Dialer{}, l.Addr().String())
	s, err := l.Accept()
	for errors.Is(err, os.ErrDeadlineExceeded) { // one that waited
		s, err = l.Accept()
	}
	require.NoError(t, err)
	require.Equal(t, c.LocalAddr().String(), s.RemoteAddr().String())
	require.NoError(t, s.Close())
}

// When the listener of a better network has failed, nobody answers requests there: dialers
// must be refused, and not wait.
func TestAutoListenerRefusesOnABetterNetworkThatHasFailed(t *testing.T) {
	fail := make(chan struct{})
	better(t, nil, failing(fail))
	l := listenAuto(t, "127.0.0.1:0")
	require.Len(t, l.PassedOver(), 1)
	close(fail)
	requireReasons(t, requireCarried(t, l, Dialer{}, "tcp"), "shm: absent", "rdma: conn")
	require.Len(t, l.PassedOver(), 2)
	require.ErrorIs(t, l.PassedOver()[1], syscall.ENETDOWN)
	require.ErrorContains(t, l.PassedOver()[1], "rdma: ")
	require.NoError(t, l.Close())
	require.Len(t, l.PassedOver(), 2)
}

// failing returns a fabric whose listeners accept nothing, and fail once fail is closed.
func failing(fail <-chan struct{}) *hooked {
	return &hooked{Fabric: sim.New(sim.Link{}), accept: func(func() (fabric.Endpoint, error)) (fabric.Endpoint, error) {
		<-fail
		return nil, fabric.ErrDeviceRemoved
	}}
}
