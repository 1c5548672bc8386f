//go:build linux

package integration_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// atOnceMeans bounds what waits for nothing. On an emulated machine a process may stand
// still for a while.
const atOnceMeans = time.Second

func TestDialWhereNobodyListensIsRefusedAtOnce(t *testing.T) {
	addr := deaf(t)
	start := time.Now()
	_, err := ringnet.Dial("rdma", addr)
	require.Less(t, time.Since(start), atOnceMeans)
	requireOpError(t, err, "dial", addr, syscall.ECONNREFUSED)
}

func TestDialOfASilentAddressObeysItsTimeout(t *testing.T) {
	addr := silent(t)
	for _, timeout := range []time.Duration{time.Nanosecond, 300 * time.Millisecond, 1500 * time.Millisecond} {
		start := time.Now()
		_, err := ringnet.DialTimeout("rdma", addr, timeout)
		took := time.Since(start)
		require.GreaterOrEqual(t, took, timeout)
		require.Less(t, took, timeout+atOnceMeans)
		require.IsType(t, &net.OpError{}, err)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.True(t, err.(net.Error).Timeout())
	}
}

func TestDialOfASilentAddressIsCancelledAtOnce(t *testing.T) {
	addr := silent(t)
	for _, after := range []time.Duration{0, time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := make(chan time.Time, 1)
		time.AfterFunc(after, func() {
			cancelled <- time.Now()
			cancel()
		})
		_, err := (&ringnet.Dialer{}).DialContext(ctx, "rdma", addr)
		require.Less(t, time.Since(<-cancelled), atOnceMeans)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, err.(net.Error).Timeout())
	}
}

// deaf returns an address of the device where nobody listens.
func deaf(t testing.TB) string {
	t.Helper()
	l := listen(t, ringnet.ListenConfig{})
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// silent returns the last address of the device's network, which nobody has. It has loaded
// the libraries by then, which is slow on an emulated machine.
func silent(t testing.TB) string {
	t.Helper()
	listen(t, ringnet.ListenConfig{})
	device := netip.MustParseAddr(rdmaAddr(t))
	ifi, err := net.InterfaceByName(requireEnv(t, "SOFTROCE_NETDEV"))
	require.NoError(t, err)
	addrs, err := ifi.Addrs()
	require.NoError(t, err)
	for _, a := range addrs {
		prefix := netip.MustParsePrefix(a.String())
		if prefix.Addr() != device {
			continue
		}
		last := prefix.Masked().Addr().As4()
		for bit := prefix.Bits(); bit < 31; bit++ {
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		return netip.AddrPortFrom(netip.AddrFrom4(last), 7).String()
	}
	t.Fatalf("%v is not an address of %s", device, ifi.Name)
	return ""
}
