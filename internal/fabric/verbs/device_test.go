//go:build linux && cgo

package verbs

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/fabrictest"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// Helpers of the tests that need a device: bin/softroce.

// onDevice returns the fabric and the address of a device, or skips the test.
func onDevice(t testing.TB) (fabric.Fabric, netip.Addr) {
	t.Helper()
	addr := rdmatest.Address(t, "SOFTROCE_ADDR")
	f, err := Fabric()
	rdmatest.Opened(t, err)
	return f, addr
}

var options = fabrictest.Options

var (
	register = fabrictest.Register
	post     = fabrictest.Post
	poll     = fabrictest.Poll
	waited   = fabrictest.Waiting
)

func listen(t testing.TB, f fabric.Fabric, addr netip.Addr) fabric.Listener {
	t.Helper()
	l, err := f.Listen(netip.AddrPortFrom(addr, 0), 128)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// opened returns a dialed endpoint, open, with all its receives posted.
func opened(t testing.TB, f fabric.Fabric, remote netip.AddrPort) fabric.Endpoint {
	t.Helper()
	e, err := f.Dial(context.Background(), netip.AddrPort{}, remote)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	require.NoError(t, openEndpoint(e))
	return e
}

func openEndpoint(e fabric.Endpoint) error {
	if _, err := e.Open(options); err != nil {
		return err
	}
	return e.PostRecv(options.RecvQueue)
}

// handshake connects a to whatever l accepts and returns that end.
func handshake(t testing.TB, l fabric.Listener, a fabric.Endpoint) fabric.Endpoint {
	t.Helper()
	accepted := make(chan fabric.Endpoint, 1)
	go func() {
		b, err := l.Accept()
		if assert.NoError(t, err) && assert.NoError(t, openEndpoint(b)) {
			assert.NoError(t, b.Accept(context.Background(), nil))
		}
		accepted <- b
	}()
	_, err := a.Connect(context.Background(), nil)
	require.NoError(t, err)
	require.NoError(t, a.Confirm())
	b := <-accepted
	t.Cleanup(func() { b.Close() })
	return b
}

// accepting accepts the next connection to a listener, calls serve with it in a
// goroutine, and sends what serve returns.
func accepting(t testing.TB, l fabric.Listener, serve func(b fabric.Endpoint) error) <-chan error {
	accepted := make(chan error, 1)
	go func() {
		b, err := l.Accept()
		if err == nil {
			t.Cleanup(func() { b.Close() })
			err = serve(b)
		}
		accepted <- err
	}()
	return accepted
}

// pair returns the two ends of a connection.
func pair(t testing.TB) (a, b fabric.Endpoint) {
	t.Helper()
	f, addr := onDevice(t)
	l := listen(t, f, addr)
	a = opened(t, f, l.Addr())
	return a, handshake(t, l, a)
}

// waitForChange waits until Wait returns a change of the connection.
func waitForChange(t testing.TB, e fabric.Endpoint) error {
	t.Helper()
	for {
		if err := rdmatest.Within(t, waited(e)); err != nil {
			return err
		}
	}
}
