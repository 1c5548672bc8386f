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

func TestDialWhereNobodyListensIsRefused(t *testing.T) {
	addr := deaf(t)
	_, err := ringnet.Dial("rdma", addr)
	requireOpError(t, err, "dial", addr, syscall.ECONNREFUSED)
}

// A dial that did not obey would end with the kernel's error, EHOSTUNREACH, seconds later.
func TestDialOfASilentAddressObeysItsTimeout(t *testing.T) {
	addr := silent(t)
	for _, timeout := range []time.Duration{time.Nanosecond, 300 * time.Millisecond, 1500 * time.Millisecond} {
		start := time.Now()
		_, err := ringnet.DialTimeout("rdma", addr, timeout)
		require.GreaterOrEqual(t, time.Since(start), timeout)
		require.IsType(t, &net.OpError{}, err)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.True(t, err.(net.Error).Timeout())
	}
}

func TestDialOfASilentAddressCanBeCancelled(t *testing.T) {
	addr := silent(t)
	for _, after := range []time.Duration{0, time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(after, cancel)
		_, err := (&ringnet.Dialer{}).DialContext(ctx, "rdma", addr)
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
