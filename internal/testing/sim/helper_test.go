// What the tests of this package share.

package sim_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/fabrictest"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

var (
	server  = netip.MustParseAddrPort("10.0.0.1:4711")
	options = fabric.Options{SendQueue: 16, RecvQueue: 16, RecvSize: 64, AckTimeout: time.Second, Retries: 3}
	ctx     = context.Background()
)

var (
	register = fabrictest.Register
	post     = fabrictest.Post
	waiting  = fabrictest.Waiting
)

// network makes a network of the link, of which nothing may be open at the end
// of the test.
func network(t testing.TB, l sim.Link) *sim.Network {
	n := sim.New(l)
	t.Cleanup(func() { require.Zero(t, n.Open(), "endpoints or listeners left open") })
	return n
}

// virtual runs f in virtual time on a network of the link.
func virtual(t *testing.T, l sim.Link, f func(t *testing.T, n *sim.Network)) {
	synctest.Test(t, func(t *testing.T) { f(t, network(t, l)) })
}

// open makes the queue pair of an endpoint, with all receives posted.
func open(t testing.TB, e fabric.Endpoint, o fabric.Options) *sim.Endpoint {
	t.Helper()
	l, err := e.Open(o)
	require.NoError(t, err)
	require.NoError(t, e.PostRecv(l.RecvQueue))
	return e.(*sim.Endpoint)
}

// connect returns both ends of an established connection, which are closed at
// the end of the test, unless the test has closed them.
func connect(t testing.TB, n *sim.Network) (client, served *sim.Endpoint) {
	t.Helper()
	return connectWith(t, n, options)
}

func connectWith(t testing.TB, n *sim.Network, o fabric.Options) (client, served *sim.Endpoint) {
	t.Helper()
	l, err := n.Listen(server, 1)
	require.NoError(t, err)
	e, err := n.Dial(ctx, netip.AddrPort{}, server)
	require.NoError(t, err)
	client = open(t, e, o)
	done := make(chan error, 1)
	go func() {
		_, err := client.Connect(ctx, nil)
		if err == nil {
			err = client.Confirm()
		}
		done <- err
	}()
	e, err = l.Accept()
	require.NoError(t, err)
	served = open(t, e, o)
	require.NoError(t, served.Accept(ctx, nil))
	require.NoError(t, <-done)
	require.NoError(t, l.Close())
	t.Cleanup(func() {
		for _, e := range []*sim.Endpoint{client, served} {
			if err := e.Close(); !errors.Is(err, net.ErrClosed) {
				require.NoError(t, err)
			}
		}
	})
	return client, served
}

func send(id uint64, data string) fabric.WorkRequest {
	return fabric.WorkRequest{ID: id, Op: fabric.Send, Data: []byte(data), Signaled: true}
}

// poll returns all that has completed.
func poll(t testing.TB, e fabric.Endpoint) []fabric.Completion {
	t.Helper()
	var c [256]fabric.Completion
	n, err := e.Poll(c[:])
	require.NoError(t, err)
	return c[:n]
}

// await waits until something has completed, as a dispatcher does.
func await(t testing.TB, e fabric.Endpoint) []fabric.Completion {
	t.Helper()
	for {
		require.NoError(t, e.Arm())
		if c := poll(t, e); len(c) > 0 {
			return c
		}
		require.NoError(t, e.Wait())
	}
}

func split(c []fabric.Completion) (sends, recvs []fabric.Completion) {
	for _, c := range c {
		if c.Recv {
			recvs = append(recvs, c)
		} else {
			sends = append(sends, c)
		}
	}
	return sends, recvs
}
