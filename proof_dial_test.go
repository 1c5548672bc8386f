package ringnet

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// interrupted returns a fabric that calls then whenever a request of a dialer has been
// answered.
func interrupted(then func()) *hooked {
	return &hooked{Fabric: sim.New(sim.Link{}), connect: func(connect func() ([]byte, error)) ([]byte, error) {
		answer, err := connect()
		if err == nil {
			then()
		}
		return answer, err
	}}
}

// A listener closes when it has answered, and another one takes its port: auto reaches the
// second, as TCP does.
func TestAutoReachesTheListenerThatHasTakenOver(t *testing.T) {
	var first, second *AutoListener
	better(t, interrupted(func() {
		require.NoError(t, first.Close())
		second = listenAuto(t, first.Addr().String())
	}), nil)
	first = listenAuto(t, "127.0.0.1:0")
	c := dialAuto(t, Dialer{}, first.Addr().String())
	require.Equal(t, "tcp", carrierOf(c))
	requireConnected(t, c, second)
	requireNothingElse(t, second)
}

// The TCP connection that proves a link may be queued behind connections that nobody
// accepts.
func TestAutoProvesALinkThoughNobodyAccepts(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	l := listenAuto(t, "127.0.0.1:0")
	var plain []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		plain = append(plain, c)
	}
	c := dialAuto(t, Dialer{}, l.Addr().String())
	require.Equal(t, "shm", carrierOf(c))
	accepted := make(map[string]bool)
	for range len(plain) + 1 {
		s := accept(t, l)
		accepted[s.RemoteAddr().String()] = true
	}
	for _, c := range append(plain, c) {
		require.True(t, accepted[c.LocalAddr().String()])
	}
	requireNothingElse(t, l)
}

// Both families, and a name with an address where nobody listens.
func TestAutoTriesAddressesAsTCPDoes(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	l := listenAuto(t, "127.0.0.1:0")
	d := Dialer{Resolver: resolver("127.0.0.2", "127.0.0.1"), Timeout: time.Minute}
	c, err := d.Dial("auto", "host.example:"+port(t, l))
	require.NoError(t, err)
	require.Equal(t, "shm", carrierOf(c))
	require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
	requireConnected(t, c, l)
}

// Links beyond the first are made in the background, each with a proof of its own.
func TestAutoProvesLinksBeyondTheFirst(t *testing.T) {
	f := sim.New(sim.Link{})
	better(t, f, nil)
	l := listenAuto(t, "127.0.0.1:0")
	d := Dialer{Config: &Config{Links: 2}}
	dialed := make(map[string]bool)
	used := func() (n int) {
		for _, i := range Links() {
			if i.Dialed && i.Connections > 0 && i.Remote.String() == l.Addr().String() {
				n++
			}
		}
		return n
	}
	for used() < 2 {
		dialed[dialAuto(t, d, l.Addr().String()).LocalAddr().String()] = true
		s := accept(t, l)
		require.True(t, dialed[s.RemoteAddr().String()])
	}
	requireNothingElse(t, l)
}

func TestAutoPassesASquatterOnRDMAItself(t *testing.T) {
	h := rdmaHost(t)
	f, err := openRDMA(nil, nil)
	require.NoError(t, err)
	better(t, nil, f)
	server := listenTCP(t, h.any())
	squatter, err := Listen("rdma", server.Addr().String())
	require.NoError(t, err)
	defer squatter.Close()
	c := dialAuto(t, Dialer{}, server.Addr().String())
	require.Equal(t, "tcp", carrierOf(c))
	requireCodes(t, c, ReasonOther, ReasonRefused)
	requireConnected(t, c, server)

	proveWithin(t, lapse)
	lied := listenTCP(t, h.any())
	liar(t, f, lied.Addr())
	c = dialAuto(t, Dialer{}, lied.Addr().String())
	requireCodes(t, c, ReasonOther, ReasonElsewhere)
	tried, err := lied.Accept()
	require.NoError(t, err)
	require.NoError(t, tried.Close())
	requireConnected(t, c, lied)
}
