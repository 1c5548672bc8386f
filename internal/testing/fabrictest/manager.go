package fabrictest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/wire"
)

// Manager tests how connections of a fabric come about, and how they do not, at an address of this
// host.
func Manager(t *testing.T, f fabric.Fabric, at netip.Addr) {
	m := manager{f, at}
	for name, test := range map[string]func(t *testing.T){
		"HandshakeCarriesPrivateDataBothWays":  m.testPrivateData,
		"RequestsAreRejected":                  m.testReject,
		"RequestsBeyondTheBacklogAreRejected":  m.testBacklog,
		"ListenerCloseFreesItsAddress":         m.testListenerClose,
		"ConnectEndsWithItsContext":            m.testConnectContext,
		"AcceptEndsWithItsContext":             m.testAcceptContext,
		"AcceptEndsWhenTheDialerWantsNoAnswer": m.testUnconfirmed,
	} {
		t.Run(name, test)
	}
}

type manager struct {
	fabric.Fabric
	at netip.Addr
}

func (m manager) listen(t testing.TB, backlog int) fabric.Listener {
	t.Helper()
	l, err := m.Listen(netip.AddrPortFrom(m.at, 0), backlog)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// open makes an endpoint's queue pair, until the end of the test.
func open(t testing.TB, e fabric.Endpoint, err error) fabric.Endpoint {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Close() })
	_, err = e.Open(Options)
	require.NoError(t, err)
	require.NoError(t, e.PostRecv(Options.RecvQueue))
	return e
}

// begins dials, and calls Connect; its error comes when it has returned.
func (m manager) begins(t testing.TB, ctx context.Context, l fabric.Listener) (fabric.Endpoint, <-chan error) {
	t.Helper()
	e, err := m.Dial(ctx, netip.AddrPort{}, l.Addr())
	a := open(t, e, err)
	connected := make(chan error, 1)
	go func() {
		_, err := a.Connect(ctx, nil)
		connected <- err
	}()
	return a, connected
}

func accepts(t testing.TB, l fabric.Listener) fabric.Endpoint {
	t.Helper()
	e, err := l.Accept()
	return open(t, e, err)
}

// answers calls Accept of an endpoint; its error comes when it has returned.
func answers(ctx context.Context, e fabric.Endpoint, private []byte) <-chan error {
	accepted := make(chan error, 1)
	go func() { accepted <- e.Accept(ctx, private) }()
	return accepted
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + 1)
	}
	return b
}

func requireRejected(t testing.TB, err error) *fabric.RejectError {
	t.Helper()
	var reject *fabric.RejectError
	require.ErrorAs(t, err, &reject)
	require.Equal(t, fabric.RejectConsumer, reject.Reason)
	return reject
}

func (m manager) testPrivateData(t *testing.T) {
	ask, answer := pattern(fabric.MaxConnectData), pattern(fabric.MaxAcceptData)
	l := m.listen(t, 1)
	require.Equal(t, m.at, l.Addr().Addr())
	require.NotZero(t, l.Addr().Port())
	e, err := m.Dial(t.Context(), netip.AddrPort{}, l.Addr())
	a := open(t, e, err)
	accepted := make(chan error, 1)
	go func() {
		b, err := l.Accept()
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
			assert.Equal(t, ask, b.Private()[:len(ask)])
			assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
			assert.Equal(t, l.Addr(), b.LocalAddr())
			_, err = b.Open(Options)
		}
		if err == nil {
			err = b.Accept(t.Context(), answer)
		}
		accepted <- err
	}()
	got, err := a.Connect(t.Context(), ask)
	require.NoError(t, err)
	require.Equal(t, answer, got[:len(answer)])
	require.Equal(t, l.Addr(), a.RemoteAddr())
	require.NoError(t, a.Confirm())
	require.NoError(t, woken(t, accepted))
}

func (m manager) testReject(t *testing.T) {
	l := m.listen(t, 1)
	_, connected := m.begins(t, t.Context(), l)
	require.NoError(t, accepts(t, l).Reject([]byte("no")))
	require.Equal(t, "no", string(requireRejected(t, woken(t, connected)).Private[:2]))
}

// Those that wait when the listener is closed are rejected, too.
func (m manager) testBacklog(t *testing.T) {
	const backlog, dials = 2, 8
	l := m.listen(t, backlog)
	connected := make(chan error, dials)
	for range dials {
		_, done := m.begins(t, t.Context(), l)
		go func() { connected <- <-done }()
	}
	for range dials - backlog {
		require.Equal(t, wire.Full, wire.DecodeReject(requireRejected(t, woken(t, connected)).Private))
	}
	require.NoError(t, l.Close())
	for range backlog {
		_ = requireRejected(t, woken(t, connected))
	}
}

func (m manager) testListenerClose(t *testing.T) {
	l := m.listen(t, 1)
	_, err := m.Listen(l.Addr(), 1)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	a, connected := m.begins(t, t.Context(), l)
	b := accepts(t, l)
	accepted := answers(t.Context(), b, nil)
	require.NoError(t, woken(t, connected))
	require.NoError(t, a.Confirm())
	require.NoError(t, woken(t, accepted))

	waits := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		waits <- err
	}()
	Asleep(t, waits, "nobody has dialed")
	require.NoError(t, l.Close())
	require.ErrorIs(t, woken(t, waits), net.ErrClosed)
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, l.Close(), net.ErrClosed)
	again, err := m.Listen(l.Addr(), 1)
	require.NoError(t, err, "though a connection made through it lives")
	require.NoError(t, again.Close())
}

// If nobody answers. Accept fails as soon as it is known that the dialer is gone.
func (m manager) testConnectContext(t *testing.T) {
	l := m.listen(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	a, connected := m.begins(t, ctx, l)
	b := accepts(t, l)
	cancel()
	require.ErrorIs(t, woken(t, connected), context.Canceled)
	require.NoError(t, a.Close())
	require.Error(t, woken(t, answers(t.Context(), b, nil)))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	e, err := m.Dial(ended, netip.AddrPort{}, l.Addr())
	if err == nil {
		_, err = open(t, e, nil).Connect(ended, nil)
	}
	require.ErrorIs(t, err, context.Canceled)
}

func (m manager) testAcceptContext(t *testing.T) {
	l := m.listen(t, 1)
	_, connected := m.begins(t, t.Context(), l)
	b := accepts(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), hang.After)
	defer cancel()
	accepted := answers(ctx, b, nil)
	require.NoError(t, woken(t, connected))
	Asleep(t, accepted, "nobody has confirmed")
	cancel()
	err := woken(t, accepted)
	require.ErrorIs(t, err, context.Canceled)
	if _, lossy := b.(fabric.Mover); lossy {
		require.ErrorAs(t, err, new(*fabric.UnconfirmedError))
	}
}

func (m manager) testUnconfirmed(t *testing.T) {
	for name, leave := range map[string]func(a fabric.Endpoint) error{
		"reject": func(a fabric.Endpoint) error { return a.Reject([]byte("no")) },
		"close":  fabric.Endpoint.Close,
	} {
		t.Run(name, func(t *testing.T) {
			l := m.listen(t, 1)
			a, connected := m.begins(t, t.Context(), l)
			accepted := answers(t.Context(), accepts(t, l), nil)
			require.NoError(t, woken(t, connected))
			require.NoError(t, leave(a))
			err := woken(t, accepted)
			require.Error(t, err)
			require.False(t, errors.Is(err, context.Canceled))
			unconfirmed := (*fabric.UnconfirmedError)(nil)
			require.False(t, errors.As(err, &unconfirmed), "%v", err)
		})
	}
}
