//go:build linux

package integration_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"unsafe"

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
	const device, size = "/dev/zram0", 16 << 20
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
	require.NoError(t, os.WriteFile("/sys/block/zram0/disksize", []byte(strconv.Itoa(size)), 0))
	// The header that mkswap makes (union swap_header of linux/swap.h).
	page := os.Getpagesize()
	header := make([]byte, page)
	binary.NativeEndian.PutUint32(header[1024:], 1)
	binary.NativeEndian.PutUint32(header[1028:], uint32(size/page-1))
	copy(header[page-10:], "SWAPSPACE2")
	require.NoError(t, os.WriteFile(device, header, 0))
	name, err := unix.BytePtrFromString(device)
	require.NoError(t, err)
	_, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(name)), 0, 0)
	require.Zero(t, errno)
	t.Cleanup(func() {
		_, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(name)), 0, 0)
		require.Zero(t, errno)
		require.NoError(t, os.WriteFile("/sys/block/zram0/reset", []byte("1"), 0))
	})
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
