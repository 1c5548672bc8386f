package rconn_test

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// patternFile returns a file with n bytes of the pattern, open for reading.
func patternFile(t testing.TB, p pattern, n int) *os.File {
	t.Helper()
	b := make([]byte, n)
	p.fill(b, 0)
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestCopyOfAFile(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		total := v.times(3 << 20)
		for i, shape := range shapes {
			client, server := v.connect(t, shape.dialer, shape.listener)
			from := patternFile(t, pattern(i), total)
			to, err := os.Create(filepath.Join(t.TempDir(), "copy"))
			require.NoError(t, err)
			defer to.Close()
			atOnce(t, func() error {
				n, err := io.CopyN(client, from, int64(total/3)) // as net/http does
				if err != nil {
					return err
				}
				at, err := from.Seek(0, io.SeekCurrent)
				if err != nil {
					return err
				}
				require.EqualValues(t, total/3, n)
				require.Equal(t, n, at)
				if n, err = io.Copy(client, from); err != nil {
					return err
				}
				require.EqualValues(t, total-total/3, n)
				return client.CloseWrite()
			}, func() error {
				n, err := io.Copy(to, server)
				require.EqualValues(t, total, n)
				return err
			})
			b, err := os.ReadFile(to.Name())
			require.NoError(t, err)
			require.Len(t, b, total)
			require.NoError(t, pattern(i).check(b, 0))
		}
	})
}

// A reader that is not a file may block for ever. Meanwhile Write and Close do not wait.
func TestCopyOfAReaderThatBlocks(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		r, w := io.Pipe()
		copied := started(func() error { _, err := io.Copy(client, r); return err })
		write(t, w, "piped")
		require.NoError(t, nextIs("piped", server))
		write(t, client, "written")
		require.NoError(t, nextIs("written", server))
		require.NoError(t, client.Close())
		_, err := server.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		w.Close()
		require.NoError(t, <-copied)
	})
}

// nextIs returns nil if want arrives next.
func nextIs(want string, c io.Reader) error {
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != want {
		return os.ErrInvalid
	}
	return nil
}

// Bytes that the file does not take are not lost.
func TestCopyToAFileThatFails(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		p := make([]byte, 10_000)
		pattern(1).fill(p, 0)
		_, err := client.Write(p)
		require.NoError(t, err)
		readOnly := patternFile(t, 0, 0)
		n, err := io.Copy(readOnly, server)
		require.ErrorIs(t, err, syscall.EBADF)
		require.Zero(t, n)
		require.NoError(t, pattern(1).receiveExactly(server, 0, len(p)))
	})
}

// oddFile is a file whose Read is the test's.
type oddFile struct {
	*os.File
	read func(p []byte) (int, error)
}

func (f oddFile) Read(p []byte) (int, error) { return f.read(p) }

// Whatever a reader does that looks like a file, the connection works on.
func TestCopyOfAnOddFile(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		for _, impossible := range []int{-1, 1 << 30} {
			f := oddFile{patternFile(t, 1, 1), func([]byte) (int, error) { return impossible, nil }}
			n, err := client.ReadFrom(f)
			require.ErrorContains(t, err, "a count that is negative or larger than its buffer")
			require.Zero(t, n)
		}
		f := oddFile{patternFile(t, 1, 1), func([]byte) (int, error) { panic("odd") }}
		require.PanicsWithValue(t, "odd", func() { client.ReadFrom(f) })
		// Bytes of a Read that also returns an error count, as they do for io.Copy.
		f.read = func(p []byte) (int, error) { return copy(p, "before"), syscall.EIO }
		n, err := client.ReadFrom(f)
		require.ErrorIs(t, err, syscall.EIO)
		require.EqualValues(t, len("before"), n)
		write(t, client, " and after")
		require.NoError(t, nextIs("before and after", server))
		require.NoError(t, client.Close())
	})
}
