//go:build linux && cgo

package verbs

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// child is the environment variable with what is left to do in the process of a test's
// own: "prepare" and run, or just "run".
const child = "RINGNET_TEST_CHILD"

// inAProcessOfItsOwn runs the rest of the test in a new process. It returns
// true there, and false in this one, when that has ended.
func inAProcessOfItsOwn(t *testing.T, stage string, attr *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(child) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"="+stage)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	return false
}

// asNobody runs the rest of the test as a user without privileges, for root may
// do everything that these tests want forbidden. Before, prepare changes what
// it likes, as root in a mount namespace of its own. Then the process executes
// itself: rdma_cm refuses a process whose threads changed their user one by
// one, as Go has them do.
func asNobody(t *testing.T, prepare func(t *testing.T)) bool {
	t.Helper()
	address(t, "SOFTROCE_ADDR")
	if os.Getenv(child) == "" && os.Getuid() != 0 {
		t.Skip("only root may change the environment of a test")
	}
	if !inAProcessOfItsOwn(t, "prepare", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}) {
		return false
	}
	if os.Getenv(child) == "prepare" {
		prepare(t)
		require.NoError(t, os.Setenv(child, "run"))
		require.NoError(t, syscall.Setgroups(nil))
		require.NoError(t, syscall.Setgid(65534))
		require.NoError(t, syscall.Setuid(65534))
		require.NoError(t, syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	return true
}

func TestTooLittleLockedMemory(t *testing.T) {
	if !asNobody(t, func(t *testing.T) {
		limit := unix.Rlimit{Cur: 256 << 10, Max: 256 << 10}
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit))
	}) {
		return
	}
	f, addr := onDevice(t)
	l := listen(t, f, addr)
	e := opened(t, f, l.Addr())
	_, err := e.Register(1<<20, fabric.RemoteWrite)
	require.Error(t, err)
	t.Log(err)
	assert.True(t, isErrno(err, syscall.ENOMEM, syscall.EPERM), "%v", err)
	assert.ErrorContains(t, err, "256 KiB in all (RLIMIT_MEMLOCK)")
	assert.ErrorIs(t, err, fabric.ErrLockedMemory)

	_, err = e.Register(64<<10, fabric.RemoteWrite)
	require.NoError(t, err, "what fits")
}

func TestNoPermissionOnTheDeviceFiles(t *testing.T) {
	if !asNobody(t, func(t *testing.T) {
		private := "/run/ringnet-test"
		require.NoError(t, unix.Mount("none", "/run", "tmpfs", 0, ""))
		require.NoError(t, os.WriteFile(private, nil, 0o600))
		require.NoError(t, unix.Mount(private, "/dev/infiniband/rdma_cm", "", unix.MS_BIND, ""))
	}) {
		return
	}
	_, err := Fabric()
	require.Error(t, err)
	t.Log(err)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorIs(t, err, os.ErrPermission)
	assert.ErrorIs(t, err, syscall.EACCES)
	assert.ErrorContains(t, err, "/dev/infiniband/rdma_cm")
}

func TestNoDevice(t *testing.T) {
	if !asNobody(t, func(t *testing.T) {
		require.NoError(t, unix.Mount("none", "/sys/class/infiniband", "tmpfs", 0, ""))
	}) {
		return
	}
	_, err := Fabric()
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorContains(t, err, "there is no RDMA device")
}

func TestPrivilegedPort(t *testing.T) {
	if !asNobody(t, func(*testing.T) {}) {
		return
	}
	f, addr := onDevice(t)
	_, err := f.Listen(netip.AddrPortFrom(addr, 80), 1)
	require.ErrorIs(t, err, syscall.EACCES)
	assert.ErrorContains(t, err, "rdma_bind_addr: permission denied")
}

// The link of a device made for this test goes down, and then the device goes.
// It happens in a process of its own because the kernel waits with the removal
// of a soft-RoCE device until every process that used it has ended.
func TestPortDownAndDeviceRemoved(t *testing.T) {
	const netdev, rdmadev = "ringnet-test", "rxe_ringnet"
	addr := netip.MustParseAddr("192.0.2.129")
	if os.Getenv(child) == "" {
		f, _ := onDevice(t)
		require.NotNil(t, f)
		t.Cleanup(func() { exec.Command("ip", "link", "delete", netdev).Run() })
		for _, command := range []string{
			"ip link add " + netdev + " type dummy",
			"ip address add " + addr.String() + "/32 dev " + netdev,
			"ip link set " + netdev + " up",
			"rdma link add " + rdmadev + " type rxe netdev " + netdev,
		} {
			if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
				t.Skipf("a device of its own takes root and rdma_rxe: %s: %s", command, out)
			}
		}
		time.Sleep(200 * time.Millisecond) // for the device's GIDs
	}
	if !inAProcessOfItsOwn(t, "run", nil) {
		return
	}
	f, err := Fabric()
	require.NoError(t, err)
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr())
	b := handshake(t, l, a)

	require.NoError(t, exec.Command("ip", "link", "set", netdev, "down").Run())
	assert.ErrorIs(t, waitForChange(t, a), fabric.ErrPortDown)
	assert.ErrorIs(t, waitForChange(t, b), fabric.ErrPortDown)
	require.NoError(t, exec.Command("ip", "link", "set", netdev, "up").Run())

	require.NoError(t, exec.Command("rdma", "link", "delete", rdmadev).Start())
	for _, e := range []fabric.Endpoint{a, b} {
		for err := error(nil); !errors.Is(err, fabric.ErrDeviceRemoved); t.Log(err) {
			err = waitForChange(t, e)
		}
	}
	_, err = l.Accept()
	assert.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	assert.NoError(t, a.Close())
	assert.NoError(t, b.Close())
	assert.NoError(t, l.Close())
}
