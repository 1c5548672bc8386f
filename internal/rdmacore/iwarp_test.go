//go:build linux && cgo

package rdmacore

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// Nothing is done over a device that speaks iWARP, and each error names it.
func TestIWARPIsRefused(t *testing.T) {
	m, addr := onDevice(t)
	l, err := m.Listen(netip.AddrPort{}, ListenOptions{Refusal: func(err error) []byte { return []byte(err.Error()) }})
	require.NoError(t, err)
	defer l.Close()
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorContains(t, err, os.Getenv("SOFTROCE_DEVICE")+" is an iWARP device")
	}
	early, err := m.Resolve(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(addr, l.Addr().Port()))
	require.NoError(t, err)
	defer early.Close()
	device := early.cm.verbs.device
	was := device.transport_type
	device.transport_type = 1
	t.Cleanup(func() { device.transport_type = was })

	_, err = m.Resolve(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(addr, 9))
	refused(err)
	_, err = m.Listen(netip.AddrPortFrom(addr, 0), ListenOptions{})
	refused(err)
	_, err = m.Bind(addr)
	refused(err)
	assert.Empty(t, m.Cards())

	// A peer's request that comes over it is rejected.
	require.NoError(t, early.Connect(1, 7, 7, nil))
	_, err = early.Await(t.Context(), ConnectResponse)
	var reject *fabric.RejectError
	require.ErrorAs(t, err, &reject)
	assert.Contains(t, string(reject.Private), "iWARP")
}

func TestAtAllAddressesOneIWARPDeviceIsRefused(t *testing.T) {
	sysfs := t.TempDir()
	device := func(name, nodeType string) {
		require.NoError(t, os.Mkdir(filepath.Join(sysfs, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(sysfs, name, "node_type"), []byte(nodeType+"\n"), 0o600))
	}
	at := func(address string) error { return refuseAtAll(sysfs, netip.MustParseAddrPort(address)) }
	device("rxe0", "1: CA")
	require.NoError(t, at("[::]:80"))
	device("siw0", "4: RNIC")
	for _, address := range []string{"[::]:80", "0.0.0.0:80"} {
		require.ErrorIs(t, at(address), errors.ErrUnsupported)
		require.ErrorContains(t, at(address), "siw0")
	}
	require.Error(t, refuseAtAll(sysfs, netip.AddrPortFrom(netip.Addr{}, 80)))
	require.NoError(t, at("192.0.2.1:80"), "the device that has the address counts")
	require.NoError(t, at("[::]:0"), "for links to come back")
}

// Beside an iWARP device, all addresses are those of the other cards.
func TestAtAllAddressesBesideAnIWARPDeviceTheOthersListen(t *testing.T) {
	rdmatest.OnCardWith(t, "iwarp")
	m, _ := onDevice(t)
	roce := netip.MustParseAddr("127.0.0.1")
	free, err := m.Listen(netip.AddrPortFrom(roce, 0), ListenOptions{})
	require.NoError(t, err)
	port := free.Addr().Port()
	require.NoError(t, free.Close())

	for _, all := range []netip.Addr{{}, netip.IPv4Unspecified()} {
		l, err := m.Listen(netip.AddrPortFrom(all, port), ListenOptions{})
		require.NoError(t, err)
		defer l.Close()
		assert.True(t, l.Addr().Addr().IsUnspecified())
		assert.Equal(t, port, l.Addr().Port())
		require.Len(t, l.ids, 1, "none of the iWARP device's")

		dialed, err := m.Resolve(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(roce, port))
		require.NoError(t, err)
		defer dialed.Close()
		require.NoError(t, dialed.Connect(1, 7, 7, nil))
		request, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, request.Close())

		_, err = m.Listen(netip.AddrPortFrom(all, port), ListenOptions{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, l.Close())
		_, err = m.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port), ListenOptions{})
		require.ErrorIs(t, err, errors.ErrUnsupported, "they have no such address")
	}
}

func TestWhereAllDevicesAreIWARPNothingListens(t *testing.T) {
	rdmatest.OnCardWith(t, "iwarp")
	m, addr := onDevice(t)
	for _, a := range []netip.Addr{{}, addr} {
		_, err := m.Listen(netip.AddrPortFrom(a, 80), ListenOptions{})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorContains(t, err, "is an iWARP device")
	}
}

// A listener at several addresses goes on while one of the devices is there.
func TestListenerFailsWithTheLastOfItsDevices(t *testing.T) {
	l := &Listener{closed: make(chan struct{}), failed: make(chan struct{}), queue: make(chan *ID, 1)}
	l.left.Store(2)
	l.Receive(Event{Kind: deviceRemoval})
	l.queue <- new(ID)
	_, err := l.Accept()
	require.NoError(t, err)
	l.Receive(Event{Kind: deviceRemoval})
	_, err = l.Accept()
	require.ErrorIs(t, err, fabric.ErrDeviceRemoved)
}

// onDevice returns the connection manager and the address of a device, or skips the test.
func onDevice(t *testing.T) (CM, netip.Addr) {
	t.Helper()
	addr := rdmatest.Address(t, "SOFTROCE_ADDR")
	m, err := Open(Config{Space: TCP})
	rdmatest.Opened(t, err)
	return m, addr
}
