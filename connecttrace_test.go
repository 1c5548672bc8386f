package ringnet

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/sim"
)

// hooks has the calls of a ClientTrace.
type hooks struct {
	mu    sync.Mutex
	calls []string
	errs  []error
}

// in returns a context with the hooks, after whose calls the others are noted no more.
func (h *hooks) in(ctx context.Context) context.Context {
	note := func(what string, err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.calls = append(h.calls, what)
		h.errs = append(h.errs, err)
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectStart: func(network, addr string) { note("start "+network+" "+addr, nil) },
		ConnectDone:  func(network, addr string, err error) { note("done "+network+" "+addr, err) },
	})
}

func (h *hooks) take() (calls []string, errs []error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls, errs = h.calls, h.errs
	h.calls, h.errs = nil, nil
	return calls, errs
}

// Each dial of an address is told once, with the network that the caller has asked for, whatever
// carries the connection, and also on a link that is up.
func TestConnectHooksAreCalledOnceForEachDialOfAnAddress(t *testing.T) {
	overEachLeg(t, func(t *testing.T, h host, _ string) {
		l := listenOn(t, h, ListenConfig{})
		address := l.Addr().String()
		var told hooks
		for range 3 {
			c, err := (&Dialer{}).DialContext(told.in(t.Context()), h.network, address)
			require.NoError(t, err)
			defer c.Close()
			calls, errs := told.take()
			require.Equal(t, []string{"start " + h.network + " " + address, "done " + h.network + " " + address}, calls)
			require.Equal(t, []error{nil, nil}, errs)
		}
		require.NoError(t, l.Close())
		_, err := (&Dialer{}).DialContext(told.in(t.Context()), h.network, address)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		calls, errs := told.take()
		require.Len(t, calls, 2)
		var op *net.OpError
		require.ErrorAs(t, errs[1], &op)
		require.ErrorIs(t, errs[1], syscall.ECONNREFUSED)
	})
}

// Values of the caller's context other than the hooks are in the contexts of a Dialer's functions.
func TestConnectHooksDoNotHideOtherValues(t *testing.T) {
	better(t, nil, nil)
	l := listenAuto(t, "127.0.0.1:0")
	type key struct{}
	var told hooks
	var seen any
	d := Dialer{TCP: &net.Dialer{ControlContext: func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		seen = ctx.Value(key{})
		return nil
	}}}
	c, err := d.DialContext(told.in(context.WithValue(t.Context(), key{}, 7)), "auto", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, 7, seen)
}

// A DialEvent has the network that the caller has given, also where ForTCP names another, and where
// package net dials.
func TestTraceHasTheNetworkThatTheCallerHasGiven(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	l := listenAuto(t, "127.0.0.1:0")
	other, err := net.Listen("unix", t.TempDir()+"/s")
	require.NoError(t, err)
	defer other.Close()
	var r recorder
	d := &Dialer{ForTCP: "auto", Trace: r.trace()}
	for network, at := range map[string]net.Addr{"tcp": l.Addr(), "unix": other.Addr()} {
		c, err := d.Dial(network, at.String())
		require.NoError(t, err)
		require.Len(t, r.dials, 1)
		e := r.dials[0]
		r.dials = nil
		require.Equal(t, network, e.Network)
		require.Equal(t, at.String(), e.Address)
		require.NotEmpty(t, e.Carrier)
		require.NoError(t, c.Close())
	}
	_, err = d.Dial("unix", "/nowhere/at/all")
	require.Error(t, err)
	require.Len(t, r.dials, 1)
	require.True(t, errors.Is(r.dials[0].Err, syscall.ENOENT))
}
