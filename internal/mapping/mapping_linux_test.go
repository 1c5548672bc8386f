package mapping

import (
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"

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

// fresh has no addresses spare during a test.
func fresh(t *testing.T) {
	t.Helper()
	before := addresses.spare
	addresses.spare = nil
	t.Cleanup(func() { addresses.spare = before })
}

// What has been retired can be touched, and is the file's no more; what has been
// unmapped cannot.
func TestRetiredMemoryCanBeTouched(t *testing.T) {
	n, page := 7*os.Getpagesize(), os.Getpagesize()
	for name, fd := range map[string]int{"private": -1, "file": file(t, n)} {
		t.Run(name, func(t *testing.T) {
			fresh(t)
			before := addresses.bytes
			mem, err := Map(fd, 0, n)
			require.NoError(t, err)
			require.Nil(t, touch(mem))
			kept := mem[2*page : 5*page]
			require.NoError(t, Retire(mem, kept))
			require.Zero(t, kept[0], "it still holds what it held")
			require.Nil(t, touch(kept))
			require.NotNil(t, touch(mem[:page]))
			require.NotNil(t, touch(mem[5*page:]))
			require.Equal(t, before+3*page, addresses.bytes)
			if fd >= 0 {
				var b [1]byte
				_, err := unix.Pread(fd, b[:], int64(2*page))
				require.NoError(t, err)
				require.EqualValues(t, 1, b[0], "touching what was retired changed the file")
			}
		})
	}
}

// The addresses of retired memory are used again, with what is mapped there then, and stay
// mapped whatever becomes of that: slices of the first memory may still be used.
func TestRetiredAddressesAreUsedAgain(t *testing.T) {
	fresh(t)
	n := 5 * os.Getpagesize()
	fd := file(t, n)
	first, err := Map(-1, 0, n)
	require.NoError(t, err)
	require.NoError(t, Retire(first, first))
	other, err := Map(-1, 0, 2*n)
	require.NoError(t, err)
	require.NotSame(t, &first[0], &other[0], "of another length")
	again, err := Map(fd, 0, n)
	require.NoError(t, err)
	require.Same(t, &first[0], &again[0])
	_, err = unix.Pwrite(fd, []byte("file"), 0)
	require.NoError(t, err)
	require.Equal(t, "file", string(again[:4]))
	require.NoError(t, Unmap(again))
	require.Nil(t, touch(first), "after Unmap of what had its addresses")

	// Calls that fail leave them for the next.
	_, err = Map(1<<20, 0, n)
	require.ErrorIs(t, err, unix.EBADF)
	_, err = Again(make([]byte, 3*n)[n:], n)
	require.Error(t, err)
	require.Nil(t, touch(first))
	again, err = Map(-1, 0, n)
	require.NoError(t, err)
	require.Same(t, &first[0], &again[0])
	require.NoError(t, Unmap(again))
	require.NoError(t, Unmap(other))
}

// Memory of other lengths uses parts of what has been retired, which become one again.
func TestRetiredAddressesAreDividedAndJoined(t *testing.T) {
	fresh(t)
	page := os.Getpagesize()
	whole, err := Map(-1, 0, 16*page)
	require.NoError(t, err)
	require.NoError(t, Retire(whole, whole))
	before := addresses.bytes
	for lengths := 1; lengths <= 16; lengths++ {
		var all [][]byte
		for n := 1; n <= 16/lengths; n++ {
			mem, err := Map(-1, 0, lengths*page)
			require.NoError(t, err)
			require.Nil(t, touch(mem))
			all = append(all, mem)
		}
		for _, i := range rand.Perm(len(all)) {
			require.NoError(t, Unmap(all[i]))
		}
		require.Equal(t, before, addresses.bytes)
		require.Len(t, addresses.spare, 1)
		require.Len(t, addresses.spare[0], len(whole))
		require.Nil(t, touch(whole))
	}
}

// What a file's seals forbid to map is mapped once more, also at spare addresses.
func TestAgainMapsWhatASealForbids(t *testing.T) {
	page := os.Getpagesize()
	fd, err := unix.MemfdCreate("mapping", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(8*page)))
	mem, err := Map(fd, int64(page), 2*page)
	require.NoError(t, err)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		t.Skip(err)
	}
	for name, spare := range map[string]int{"elsewhere": 0, "at spare addresses": 6} {
		t.Run(name, func(t *testing.T) {
			fresh(t)
			if spare > 0 {
				first, err := Map(-1, 0, spare*page)
				require.NoError(t, err)
				require.NoError(t, Retire(first, first))
			}
			before := addresses.bytes
			again, err := Again(mem[page:], 6*page)
			require.NoError(t, err)
			require.Equal(t, before+(6-spare)*page, addresses.bytes)
			for _, at := range []int{2, 7} {
				copy(again[(at-2)*page:], name)
				there := make([]byte, len(name))
				_, err = unix.Pread(fd, there, int64(at*page))
				require.NoError(t, err)
				require.Equal(t, name, string(there))
			}
			again[0] = 'E'
			require.EqualValues(t, 'E', mem[page])
			require.NoError(t, Unmap(again))
		})
	}
	require.NoError(t, Unmap(mem))
}
