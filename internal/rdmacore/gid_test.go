//go:build linux && cgo

package rdmacore

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// On a card whose functions have the same node GUID, rdma-core opens the first, whichever has the address.
func TestDeviceThatDoesNotHaveTheAddressIsRefused(t *testing.T) {
	rdmatest.OnCardWith(t, "equal-guids")
	m, first := onDevice(t)
	for _, x := range []struct {
		addr netip.Addr
		fits bool
	}{{first, true}, {netip.MustParseAddr("127.0.0.2"), false}} {
		id, err := m.Bind(x.addr)
		require.NoError(t, err)
		q := &QueuePair{ID: id}
		defer q.Close()
		if err = q.OpenDevice(); x.fits {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorContains(t, err, "two0 has the address, and rdma-core has opened one0, which has the same node GUID")
	}
}

// A GID that no device shows is one of another network namespace.
func TestOnlyAnotherDeviceWithTheGIDIsAnError(t *testing.T) {
	sysfs := t.TempDir()
	write := func(device, index, gid string) {
		writeFile(t, gid, sysfs, device, "ports/1/gids", index)
	}
	write("a", "0", "0000:0000:0000:0000:0000:0000:0000:0000")
	write("a", "1", "0000:0000:0000:0000:0000:ffff:0a00:0001")
	write("b", "0", "0000:0000:0000:0000:0000:ffff:0a00:0001")
	write("b", "1", "0000:0000:0000:0000:0000:ffff:0a00:0002")
	check := func(gid string) error { return checkGID(sysfs, "a", 1, netip.MustParseAddr(gid)) }
	assert.NoError(t, check("::ffff:10.0.0.1"))
	assert.NoError(t, check("::ffff:10.0.0.3"))
	assert.NoError(t, check("::"), "is not known")
	assert.ErrorContains(t, check("::ffff:10.0.0.2"), "b has the address")
}
