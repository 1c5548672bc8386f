package rconn_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// venue is a fabric that the suite runs over, and an address to listen on.
type venue struct {
	fabric.Fabric
	addr netip.Addr
}

// overEachFabric runs a test over every fabric that this machine has.
func overEachFabric(t *testing.T, test func(t *testing.T, v venue)) {
	t.Run("sim", func(t *testing.T) {
		n := sim.New(sim.Link{})
		test(t, venue{n, netip.MustParseAddr("10.0.0.1")})
		require.Zero(t, n.RNR(), "receiver not ready")
	})
}

// connect makes a connection: its dialing end and its listening end.
func (v venue) connect(t testing.TB, dialer, listener *rconn.Config) (client, server *rconn.Conn) {
	t.Helper()
	l, err := v.Listen(netip.AddrPortFrom(v.addr, 0), 8)
	require.NoError(t, err)
	defer l.Close()
	client, server, err = v.connectTo(l, dialer, listener)
	require.NoError(t, err)
	t.Cleanup(func() {
		client.SetLinger(0)
		client.Close()
		server.SetLinger(0)
		server.Close()
	})
	return client, server
}

func (v venue) connectTo(l fabric.Listener, dialer, listener *rconn.Config) (client, server *rconn.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	type result struct {
		c   *rconn.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		ep, err := l.Accept()
		if err != nil {
			accepted <- result{nil, err}
			return
		}
		c, err := rconn.Server(ctx, "rdma", ep, listener)
		accepted <- result{c, err}
	}()
	ep, err := v.Dial(ctx, netip.AddrPort{}, l.Addr())
	if err == nil {
		client, err = rconn.Client(ctx, "rdma", ep, dialer)
	}
	if err != nil {
		l.Close()
		<-accepted
		return nil, nil, err
	}
	r := <-accepted
	return client, r.c, r.err
}

// pipe is what nettest.TestConn asks for.
func (v venue) pipe(t testing.TB) func() (c1, c2 net.Conn, stop func(), err error) {
	l, err := v.Listen(netip.AddrPortFrom(v.addr, 0), 8)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return func() (c1, c2 net.Conn, stop func(), err error) {
		client, server, err := v.connectTo(l, nil, nil)
		if err != nil {
			return nil, nil, nil, err
		}
		return client, server, func() { client.Close(); server.Close() }, nil
	}
}
