package mapping

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// touch reads and writes memory, and returns the fault if that was impossible.
func touch(mem []byte) (fault any) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() }()
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i]++
	}
	return nil
}

// file is one in memory of n bytes.
func file(t *testing.T, n int) (fd int) {
	t.Helper()
	fd, err := unix.MemfdCreate("mapping", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	return fd
}

// What has been retired can be touched, and is the file's no more; what has been
// unmapped cannot.
func TestRetiredMemoryCanBeTouched(t *testing.T) {
	n := 7 * os.Getpagesize()
	for name, fd := range map[string]int{"private": -1, "file": file(t, n)} {
		t.Run(name, func(t *testing.T) {
			mem, err := Map(fd, n)
			require.NoError(t, err)
			require.Nil(t, touch(mem))
			require.NoError(t, Retire(mem))
			require.Zero(t, mem[0], "it still holds what it held")
			require.Nil(t, touch(mem))
			require.NoError(t, unix.Munmap(reuse(n)))
			require.NotNil(t, touch(mem))
			if fd >= 0 {
				var b [1]byte
				_, err := unix.Pread(fd, b[:], 0)
				require.NoError(t, err)
				require.EqualValues(t, 1, b[0], "touching what was retired changed the file")
			}
		})
	}
}

// isForHugePages reports whether the kernel has been asked for huge pages at an address:
// proc_pid_smaps(5), hg.
func isForHugePages(t *testing.T, mem []byte) bool {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	at, found := uint64(uintptr(unsafe.Pointer(&mem[0]))), false
	for line := range strings.Lines(string(smaps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			found = from <= at && at < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && found {
			return slices.Contains(strings.Fields(flags), "hg")
		}
	}
	t.Fatal("not in /proc/self/smaps")
	return false
}

// Large private memory is of huge pages, also where other memory was before, and no other is.
func TestLargeMemoryIsOfHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); errors.Is(err, os.ErrNotExist) {
		t.Skip("this kernel has no huge pages that are asked for so")
	}
	for _, test := range []struct {
		name string
		fd   int
		n    int
		want bool
	}{
		{"large", -1, 2 * hugePage, true},
		{"again", -1, 2 * hugePage, true},
		{"small", -1, hugePage / 2, false},
		{"a file", file(t, 3*hugePage), 3 * hugePage, false},
	} {
		mem, err := Map(test.fd, test.n)
		require.NoError(t, err)
		require.Equal(t, test.want, isForHugePages(t, mem), test.name)
		require.NoError(t, Retire(mem))
	}
}

// The addresses of retired memory are used again, with what is mapped there then.
func TestRetiredAddressesAreUsedAgain(t *testing.T) {
	n := 5 * os.Getpagesize()
	fd := file(t, n)
	first, err := Map(-1, n)
	require.NoError(t, err)
	require.Nil(t, touch(first))
	require.NoError(t, Retire(first))
	other, err := Map(-1, 2*n)
	require.NoError(t, err)
	require.NotSame(t, &first[0], &other[0], "of another length")
	again, err := Map(fd, n)
	require.NoError(t, err)
	require.Same(t, &first[0], &again[0])
	_, err = unix.Pwrite(fd, []byte("file"), 0)
	require.NoError(t, err)
	require.Equal(t, "file", string(again[:4]))
	require.NoError(t, Retire(again))

	// A Map that fails leaves them for the next.
	_, err = Map(1<<20, n)
	require.ErrorIs(t, err, unix.EBADF)
	require.Nil(t, touch(first))
	again, err = Map(-1, n)
	require.NoError(t, err)
	require.Same(t, &first[0], &again[0])
	require.NoError(t, unix.Munmap(again))
	require.NoError(t, unix.Munmap(other))
}
