//go:build linux

package integration_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
)

// Where memory is short the kernel swaps out memory of shm links that has not been used for
// long. Connections begin in it all the same.
func TestConnectionsBeginInMemoryThatIsSwappedOut(t *testing.T) {
	requireEnv(t, "SOFTROCE_ADDR") // a machine that is there for tests
	swapOn(t)
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var dialed, accepted []net.Conn
	for range 8 {
		d, err := ringnet.Dial("shm", l.Addr().String())
		require.NoError(t, err)
		defer d.Close()
		dialed, accepted = append(dialed, d), append(accepted, accept(t, l))
		for i := range dialed {
			requireEcho(t, dialed[i], accepted[i])
		}
		pageOut(t)
	}
	require.Equal(t, 1, linksTo(l.Addr().String()))
}

// swapOn has a kernel without swap swap to compressed memory, until the end of the test.
func swapOn(t *testing.T) {
	t.Helper()
	swaps, err := os.ReadFile("/proc/swaps")
	require.NoError(t, err)
	if bytes.Count(swaps, []byte("\n")) > 1 { // besides the heading
		return
	}
	if out, err := exec.Command("modprobe", "zram").CombinedOutput(); err != nil {
		why := fmt.Sprintf("this kernel has no compressed memory to swap to: %v: %s", err, out)
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	n := nodes{t}
	n.here("echo 16M >/sys/block/zram0/disksize && mkswap /dev/zram0 && swapon /dev/zram0")
	t.Cleanup(func() { n.here("swapoff /dev/zram0 && echo 1 >/sys/block/zram0/reset") })
}

var sharedMemory = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) .*memfd:ringnet`)

// pageOut has the kernel swap out what this process shares, as far as only one end has
// touched it.
func pageOut(t *testing.T) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	found := sharedMemory.FindAllSubmatch(maps, -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		from, err := strconv.ParseUint(string(m[1]), 16, 64)
		require.NoError(t, err)
		to, err := strconv.ParseUint(string(m[2]), 16, 64)
		require.NoError(t, err)
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_PAGEOUT)
		require.Zero(t, errno, string(m[0]))
	}
}
