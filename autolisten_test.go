package ringnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestAutoRefusesAPortThatIsTakenInAnyPortSpace(t *testing.T) {
	for _, squatted := range auto.BetterThanTCP {
		shm, rdma := sim.New(sim.Link{}), sim.New(sim.Link{})
		better(t, shm, rdma)
		free, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address := free.Addr().String()
		require.NoError(t, free.Close())
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
	l := listenAuto(t, "127.0.0.1:0")
	require.NoError(t, l.Close())
	_, err := Dial("auto", l.Addr().String())
	requireOpError(t, err, "dial", "auto", l.Addr().String(), syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "passed over: shm: absent in this test; rdma: connect: connection refused")

	rdma := sim.New(sim.Link{})
	rdma.Blackhole(netip.MustParseAddr("127.0.0.1"))
	better(t, nil, rdma)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = new(Dialer).DialContext(ctx, "auto", l.Addr().String())
	require.ErrorIs(t, err, context.Canceled)
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

func TestAutoListenerCloseWakesAcceptAndResetsWhatWasNotAccepted(t *testing.T) {
	better(t, nil, sim.New(sim.Link{}))
	l := listenAuto(t, ":0")
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	c := dial(t, &Dialer{}, "auto", net.JoinHostPort("127.0.0.1", port))
	require.NoError(t, l.Close())
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = l.Accept()
	requireOpError(t, err, "accept", "auto", l.Addr().String(), net.ErrClosed)
	requireOpError(t, l.Close(), "close", "auto", l.Addr().String(), net.ErrClosed)
}
