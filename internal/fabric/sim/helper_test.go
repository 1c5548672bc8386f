// What the tests of this package share.

package sim_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

var server = netip.MustParseAddrPort("10.0.0.1:4711")

var options = fabric.Options{SendQueue: 16, RecvQueue: 16, RecvSize: 64}

// open makes the queue pair of an endpoint, with all receives posted.
func open(t testing.TB, e fabric.Endpoint, o fabric.Options) *sim.Endpoint {
	t.Helper()
	l, err := e.Open(o)
	require.NoError(t, err)
	require.NoError(t, e.PostRecv(l.RecvQueue))
	return e.(*sim.Endpoint)
}

// connect returns both ends of an established connection, which are closed, and
// checked for leaks, at the end of the test.
func connect(t testing.TB, n *sim.Network, o fabric.Options) (client, served *sim.Endpoint) {
	t.Helper()
	l, err := n.Listen(server, 1)
	require.NoError(t, err)
	c, err := n.Dial(context.Background(), netip.AddrPort{}, server)
	require.NoError(t, err)
	client = open(t, c, o)

	accepted := make(chan error, 1)
	go func() {
		s, err := l.Accept()
		if err == nil {
			if _, err = s.Open(o); err == nil {
				err = s.PostRecv(min(o.RecvQueue, 16))
			}
		}
		if err != nil {
			accepted <- err
			return
		}
		served = s.(*sim.Endpoint)
		accepted <- s.Accept(context.Background(), []byte("welcome"))
	}()
	_, err = client.Connect(context.Background(), []byte("hello"))
	require.NoError(t, err)
	require.NoError(t, client.Confirm())
	require.NoError(t, <-accepted)
	require.NoError(t, l.Close())
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, served.Close())
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
	return client, served
}
