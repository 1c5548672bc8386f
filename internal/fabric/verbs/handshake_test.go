//go:build linux && cgo

package verbs

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// RTU may be lost, and the connection manager repeats the answer only seconds later, so the first
// message confirms, too.
func TestTheFirstMessageConfirms(t *testing.T) {
	f, addr := onDevice(t)
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr())
	connected := make(chan error, 1)
	go func() {
		_, err := a.Connect(context.Background(), nil)
		if err == nil {
			err = a.PostSend([]fabric.WorkRequest{{ID: 1, Op: fabric.Send, Signaled: true, Data: []byte("x")}})
		}
		connected <- err
	}()
	b, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	require.NoError(t, openEndpoint(b))
	ctx, cancel := context.WithTimeout(context.Background(), hang.After)
	defer cancel()
	require.NoError(t, b.Accept(ctx, nil))
	require.NoError(t, rdmatest.Within(t, connected))
	assert.Equal(t, []byte("x"), poll(t, b, 1)[0].Data)
	poll(t, a, 1)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + 1)
	}
	return b
}

// A listener that goes away after it has answered leads to another error than a device
// that refuses the dialer's queue pair.
func TestListenerClosesDuringTheHandshake(t *testing.T) {
	f, addr := onDevice(t)
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go answerAndClose(ctx, t, l)
	_, err := a.Connect(context.Background(), nil)
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, waitForChange(t, a), fabric.ErrDisconnected)
	err = a.Confirm()
	require.ErrorIs(t, err, fabric.ErrDisconnected)
	t.Log(err)
}

// answerAndClose accepts a request, waits until ctx ends for the dialer to confirm, and closes
// that end.
func answerAndClose(ctx context.Context, t *testing.T, l fabric.Listener) {
	b, err := l.Accept()
	if !assert.NoError(t, err) {
		return
	}
	defer b.Close()
	if assert.NoError(t, openEndpoint(b)) {
		assert.ErrorIs(t, b.Accept(ctx, nil), context.Canceled)
	}
}

// An address on the device's own network that no host has. On a card in user space, which has no
// interface, it is one of TEST-NET-1.
func silent(addr netip.Addr) netip.AddrPort {
	if os.Getenv("SOFTROCE_NETDEV") == "" {
		addr = netip.MustParseAddr("192.0.2.1")
	}
	b := addr.As4()
	b[3] ^= 0x55
	return netip.AddrPortFrom(netip.AddrFrom4(b), 9)
}

func TestDialToASilentAddressEndsWithItsContext(t *testing.T) {
	f, addr := onDevice(t)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	e, err := f.Dial(ctx, netip.AddrPort{}, silent(addr))
	if err == nil { // the address is known, or needs not be
		t.Cleanup(func() { e.Close() })
		require.NoError(t, openEndpoint(e))
		_, err = e.Connect(ctx, nil)
	}
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}
