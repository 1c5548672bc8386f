package ringnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// slowToClose is a network whose listeners take until they are let to close.
type slowToClose struct {
	fabric.Fabric
	closing, let chan struct{}
}

func (s *slowToClose) Listen(at netip.AddrPort, backlog int) (fabric.Listener, error) {
	l, err := s.Fabric.Listen(at, backlog)
	return &slowListener{l, s}, err
}

type slowListener struct {
	fabric.Listener
	network *slowToClose
}

func (l *slowListener) Close() error {
	l.network.closing <- struct{}{}
	<-l.network.let
	return l.Listener.Close()
}

// A listener that closes refuses on all networks before another process can have a port of its: a
// dial that begins when there is another listener at TCP's port does not reach the one that closes,
// over a link that is up either.
func TestAListenerOfAutoRefusesEverywhereBeforeItFreesItsPort(t *testing.T) {
	slow := &slowToClose{sim.New(sim.Link{}), make(chan struct{}, 1), make(chan struct{})}
	better(t, slow, sim.New(sim.Link{}))
	old := listenAuto(t, "127.0.0.1:0")
	t.Setenv("RINGNET_NETWORKS", "rdma,tcp")
	left := dialAuto(t, Dialer{}, old.Addr().String())
	require.Equal(t, "rdma", left.Carrier())
	accept(t, old)

	closed := make(chan error)
	go func() { closed <- old.Close() }()
	<-slow.closing // shm's listener, and rdma's has yet to close
	successor, err := net.Listen("tcp", old.Addr().String())
	require.NoError(t, err)
	defer successor.Close()
	setAutoTimes(t, func(times *auto.Times) { times.Answer = time.Second })
	c := dialAuto(t, Dialer{}, old.Addr().String())
	require.Equal(t, "tcp", c.Carrier(), "the listener that closes has taken the connection")
	slow.let <- struct{}{}
	require.NoError(t, <-closed)
	_, err = left.Write([]byte("x"))
	require.NoError(t, err)
}

// Where Listen of auto fails on one network, none has accepted anything: dialers find no listener.
func TestNothingIsAcceptedBeforeAutoListensOnAllNetworks(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	free := listenAuto(t, "127.0.0.1:0")
	address := free.Addr().String()
	require.NoError(t, free.Close())

	var dialed chan error
	taken := errors.New("not on TCP")
	lc := ListenConfig{TCP: &net.ListenConfig{Control: func(string, string, syscall.RawConn) error {
		dialed = make(chan error, 1)
		go func() {
			_, err := Dial("shm", address)
			dialed <- err
		}()
		time.Sleep(10 * time.Millisecond) // in which a listener that has begun accepts
		return taken
	}}}
	_, err := lc.Listen(context.Background(), "auto", address)
	require.ErrorIs(t, err, taken)
	select {
	case err := <-dialed:
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	case <-time.After(hang.After):
		require.Fail(t, "the dial hangs")
	}
}
