//go:build linux

package integration_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
)

// requireBoth requires that Dial and Listen at the address fail with the given error, and
// that its text has the words.
func requireBoth(t *testing.T, addr string, cause error, says ...string) {
	t.Helper()
	_, dialed := ringnet.Dial("rdma", addr)
	_, listened := ringnet.Listen("rdma", addr)
	for op, err := range map[string]error{"dial": dialed, "listen": listened} {
		require.IsType(t, &net.OpError{}, err)
		require.Equal(t, op, err.(*net.OpError).Op)
		require.ErrorIs(t, err, cause)
		for _, what := range says {
			require.ErrorContains(t, err, what)
		}
		t.Log(err)
	}
}

// requireReason requires that auto's listeners name the reason why they do without rdma: by
// a code, and in one line.
func requireReason(t *testing.T, code ringnet.ReasonCode) {
	t.Helper()
	l, err := ringnet.Listen("auto", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, r := range l.(*ringnet.AutoListener).PassedOver() {
		if r.Network == "rdma" {
			require.Equal(t, code, r.Code, "%v", r)
			require.Less(t, len(r.Error()), 160)
			return
		}
	}
	require.Fail(t, "rdma is offered")
}

func TestAddressWithoutRDMA(t *testing.T) {
	addr := net.JoinHostPort(requireEnv(t, "SOFTROCE_OTHER_ADDR"), "7")
	requireBoth(t, addr, errors.ErrUnsupported, "no RDMA device for "+os.Getenv("SOFTROCE_OTHER_ADDR"))
}

// differently runs a test in a process of its own, whose file system change has changed.
func differently(t *testing.T, change, test func(t *testing.T)) {
	t.Helper()
	rdmaAddr(t)
	unless(t, os.Getuid() == 0, "only root may change what a process sees of the file system")
	alone(t, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, func(t *testing.T) {
		require.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		change(t)
		test(t)
	})
}

// unprivilegedVariable names the test that a process without privileges runs.
const unprivilegedVariable = "RINGNET_TEST_UNPRIVILEGED"

// unprivileged runs a test as a user without privileges, in a process for which the RDMA
// devices have the given mode, and which may lock so much memory.
func unprivileged(t *testing.T, mode uint32, memlock uint64, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv(unprivilegedVariable) == t.Name() {
		test(t)
		return
	}
	differently(t, func(t *testing.T) {
		permit(t, mode)
		limit := unix.Rlimit{Cur: memlock, Max: memlock}
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit))
	}, func(t *testing.T) {
		// A user other than root may not get to the executable.
		dir := t.TempDir()
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
		exe := filepath.Join(dir, "test")
		require.NoError(t, os.WriteFile(exe, nil, 0o755))
		require.NoError(t, unix.Mount("/proc/self/exe", exe, "", unix.MS_BIND, ""))
		defer unix.Unmount(exe, 0)
		const nobody = 65534
		runAgain(t, exe, unprivilegedVariable, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}})
	})
}

func TestNoDevice(t *testing.T) {
	differently(t, func(t *testing.T) {
		hide(t, "/sys/class/infiniband")
	}, func(t *testing.T) {
		requireBoth(t, "127.0.0.1:7", errors.ErrUnsupported, "there is no RDMA device")
		requireReason(t, ringnet.ReasonNoDevice)
	})
}

func TestNoLibrary(t *testing.T) {
	differently(t, func(t *testing.T) {
		for _, file := range libraries(t, "libibverbs.so.1") {
			hide(t, filepath.Dir(file)) // this process keeps what it has loaded from there
		}
	}, func(t *testing.T) {
		requireBoth(t, "127.0.0.1:7", errors.ErrUnsupported, "libibverbs.so.1: cannot open")
		requireReason(t, ringnet.ReasonNoLibrary)
	})
}

func TestNoPermission(t *testing.T) {
	unprivileged(t, 0o600, unix.RLIM_INFINITY, func(t *testing.T) {
		requireBoth(t, "127.0.0.1:7", fs.ErrPermission, "/dev/infiniband/rdma_cm", "this user may not use RDMA")
		requireBoth(t, "127.0.0.1:7", errors.ErrUnsupported)
		requireReason(t, ringnet.ReasonPermission)
	})
}

func TestUnprivilegedUser(t *testing.T) {
	unprivileged(t, 0o666, unix.RLIM_INFINITY, func(t *testing.T) {
		d, a := pair(t)
		requireEcho(t, d, a)
		_, err := ringnet.Listen("rdma", net.JoinHostPort(rdmaAddr(t), "7"))
		require.ErrorIs(t, err, fs.ErrPermission)
		require.ErrorContains(t, err, "rdma_bind_addr: permission denied")
	})
}

// hide puts an empty directory in the place of a directory.
func hide(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
}

// libraries returns the files of the given name in the directories of libraries.
func libraries(t *testing.T, name string) (files []string) {
	t.Helper()
	for _, dir := range []string{"/usr/lib", "/usr/lib64", "/usr/lib/*"} {
		found, err := filepath.Glob(filepath.Join(dir, name))
		require.NoError(t, err)
		files = append(files, found...)
	}
	require.NotEmpty(t, files, name)
	return files
}

// permit gives this process copies of the RDMA devices with the given mode.
func permit(t *testing.T, mode uint32) {
	t.Helper()
	const dir = "/dev/infiniband"
	devices, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	numbers := make(map[string]int)
	for _, device := range devices {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(device, &st))
		numbers[device] = int(st.Rdev)
	}
	hide(t, dir)
	for device, number := range numbers {
		require.NoError(t, unix.Mknod(device, unix.S_IFCHR, number))
		require.NoError(t, os.Chmod(device, fs.FileMode(mode)))
	}
}
