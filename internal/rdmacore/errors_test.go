//go:build linux && cgo

package rdmacore

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

func TestAddressErrorsSayWhatIsWrong(t *testing.T) {
	addr := netip.MustParseAddr("198.51.100.1")
	err := addrError("rdma_resolve_addr", syscall.ENODEV, addr)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "no RDMA device for 198.51.100.1")

	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, syscall.EACCES} {
		err := addrError("rdma_bind_addr", errno, addr)
		assert.ErrorIs(t, err, errno)
		assert.NotErrorIs(t, err, errors.ErrUnsupported)
		var call *os.SyscallError
		assert.ErrorAs(t, err, &call)
	}
}

// rdma-core says -1 of a device that it cannot open: EPERM would be a lie, and taken for a
// shortage.
func TestADeviceThatTheLibraryCannotOpenIsNoMatterOfPermission(t *testing.T) {
	addr := netip.MustParseAddr("198.51.100.1")
	err := resolveError("rdma_resolve_addr", -1, addr)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.NotErrorIs(t, err, syscall.EPERM)
	assert.False(t, IsShortage(err))
	assert.ErrorContains(t, err, "no RDMA device for 198.51.100.1 that the rdma-core of this process can open")

	assert.Equal(t, addrError("rdma_resolve_addr", syscall.ETIMEDOUT, addr),
		resolveError("rdma_resolve_addr", -int(syscall.ETIMEDOUT), addr))
}

// A device is back when another file has the place of the one that a context has open.
func TestADeviceIsBack(t *testing.T) {
	sysfs, dev := t.TempDir(), t.TempDir()
	uverbs := filepath.Join(sysfs, "mlx5_0", "device", "infiniband_verbs")
	require.NoError(t, os.MkdirAll(filepath.Join(uverbs, "uverbs1"), 0o700))
	node := filepath.Join(dev, "uverbs1")
	require.NoError(t, os.WriteFile(node, nil, 0o600))
	f, err := os.Open(node)
	require.NoError(t, err)
	defer f.Close()
	back := func() bool { return isBack(sysfs, dev, "mlx5_0", int(f.Fd())) }
	assert.False(t, back(), "it is the same")
	require.NoError(t, os.Remove(node))
	assert.False(t, back(), "it is gone")
	require.NoError(t, os.WriteFile(node, nil, 0o600))
	assert.True(t, back(), "a new node of the same number")
	require.NoError(t, os.Rename(filepath.Join(uverbs, "uverbs1"), filepath.Join(uverbs, "uverbs2")))
	assert.False(t, back(), "no node yet")
	require.NoError(t, os.WriteFile(filepath.Join(dev, "uverbs2"), nil, 0o600))
	assert.True(t, back(), "a new number")
	assert.False(t, isBack(sysfs, dev, "mlx5_1", int(f.Fd())), "another device")
}

// Each thing that is missing has an error of its own.
func TestUnavailable(t *testing.T) {
	dir := t.TempDir()
	sysfs, dev := filepath.Join(dir, "sys"), filepath.Join(dir, "dev")
	check := func(cause error, text string) {
		t.Helper()
		err := checkSystem(sysfs, dev)
		assert.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorIs(t, err, cause)
		assert.ErrorContains(t, err, text)
	}
	check(syscall.ENODEV, "there is no RDMA device")
	require.NoError(t, os.MkdirAll(filepath.Join(sysfs, "rxe0"), 0o700))
	check(fs.ErrNotExist, "rdma_cm")
	require.NoError(t, os.Mkdir(dev, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dev, "rdma_cm"), nil, 0o600))
	check(fs.ErrNotExist, "uverbs*")
	require.NoError(t, os.WriteFile(filepath.Join(dev, "uverbs0"), nil, 0o600))
	require.NoError(t, checkSystem(sysfs, dev))

	err := load("libibverbs.so.none", librdmacm)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "libibverbs.so.none")
	assert.ErrorIs(t, err, fabric.ErrNoLibrary)

	err = load("libc.so.6", librdmacm)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "undefined symbol: ibv_")
}

// allFunctions is a library that has every function that ringnet looks for, and nothing else of
// rdma-core.
const allFunctions = `
#define FUNCTION(result, name, args) void name(void) {}
#include "functions.h"
RN_LIBIBVERBS(FUNCTION)
RN_LIBIBVERBS_OPTIONAL(FUNCTION)
RN_LIBRDMACM(FUNCTION)
`

// The error for an rdma-core that is too old is another than that for one that is
// missing.
func TestRDMACoreOlderThanV23(t *testing.T) {
	const child = "RINGNET_TEST_CHILD"
	if os.Getenv(child) == "" { // libraries stay loaded
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	build := func(without string) string {
		dir := t.TempDir()
		source, library := filepath.Join(dir, "functions.c"), filepath.Join(dir, "functions.so")
		require.NoError(t, os.WriteFile(source, []byte(allFunctions), 0o600))
		out, err := exec.Command(compiler(), "-Wall", "-Werror", "-I.", "-shared", "-fPIC", "-D"+without+"=absent", "-o", library, source).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return library
	}
	library := build("rdma_establish")
	err := load(library, library)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "undefined symbol: rdma_establish")
	assert.ErrorContains(t, err, "rdma-core is older than v23")

	// What v23 itself has not is not missed.
	library = build("ibv_reg_mr_iova2")
	require.NoError(t, load(library, library))
}

func TestASettingThatTakesLocksAwayIsRefused(t *testing.T) {
	for value, want := range map[string]string{"": "", "0": "", "1": "MLX5_SINGLE_THREADED"} {
		t.Setenv("MLX5_SINGLE_THREADED", value)
		err := checkLocks()
		if want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorContains(t, err, want)
	}
}
