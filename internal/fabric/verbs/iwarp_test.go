//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// Nothing is done over a device that speaks iWARP, and each error names it.
func TestIWARPIsRefused(t *testing.T) {
	f, addr := onDevice(t)
	all := listen(t, f, netip.Addr{})
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorContains(t, err, os.Getenv("SOFTROCE_DEVICE")+" is an iWARP device")
	}
	early := opened(t, f, netip.AddrPortFrom(addr, all.Addr().Port())).(*endpoint)
	device := early.id.verbs.device
	was := device.transport_type
	device.transport_type = 1
	t.Cleanup(func() { device.transport_type = was })

	_, err := f.Dial(context.Background(), netip.AddrPort{}, all.Addr())
	require.Error(t, err)
	_, err = f.Dial(context.Background(), netip.AddrPort{}, netip.AddrPortFrom(addr, 9))
	refused(err)
	_, err = f.Listen(netip.AddrPortFrom(addr, 0), 1)
	refused(err)
	_, err = f.(rdma).bindTo(addr)
	refused(err)
	assert.Empty(t, f.(rdma).Cards())

	// A peer's request that comes over it is rejected.
	_, err = early.Connect(context.Background(), nil)
	var reject *fabric.RejectError
	require.ErrorAs(t, err, &reject)
	assert.Contains(t, wire.DecodeReject(reject.Private).Reason, "iWARP")
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
