package rconn_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/rconn"
)

// look calls a function once with the descriptor of a connection, and returns its result.
func look(t *testing.T, c syscall.Conn, call func(fd int, p []byte) (int, error)) (string, error) {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	p := make([]byte, 100)
	var n int
	var failed error
	require.NoError(t, raw.Read(func(fd uintptr) bool {
		n, failed = call(int(fd), p)
		return true
	}))
	return string(p[:max(n, 0)]), failed
}

func peekRaw(fd int, p []byte) (int, error) {
	n, _, err := syscall.Recvfrom(fd, p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return n, err
}

// What drivers of databases find out about an idle connection is true.
func TestSyscallConnShowsWhatReadWouldFind(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for name, end := range map[string]struct {
			by   func(*rconn.Conn)
			want error
		}{
			"EOF":   {func(c *rconn.Conn) { require.NoError(t, c.CloseWrite()) }, nil},
			"reset": {func(c *rconn.Conn) { require.NoError(t, c.SetLinger(0)); require.NoError(t, c.Close()) }, syscall.ECONNRESET},
		} {
			c, s := v.connect(t, nil, nil)
			for range 3 {
				_, err := look(t, c, syscall.Read)
				require.Equal(t, syscall.EAGAIN, err)
			}
			write(t, s, "came")
			require.NoError(t, c.AwaitRead())
			for range 2 {
				got, err := look(t, c, peekRaw)
				require.NoError(t, err)
				require.Equal(t, "came", got)
			}
			got, err := look(t, c, func(fd int, p []byte) (int, error) { return syscall.Read(fd, p[:3]) })
			require.NoError(t, err)
			require.Equal(t, "cam", got)
			require.NoError(t, nextIs("e", c))

			end.by(s)
			require.NoError(t, c.AwaitRead())
			for _, call := range []func(int, []byte) (int, error){syscall.Read, peekRaw} {
				got, err := look(t, c, call)
				require.Equal(t, end.want, err, name)
				require.Empty(t, got)
			}
		}
	})
}

// A function that has seen too little waits for more, and one that never can see as much is
// told why.
func TestSyscallConnWaits(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		raw, err := c.SyscallConn()
		require.NoError(t, err)
		var seen []byte
		until := func(want int) func() error {
			return func() error {
				return raw.Read(func(fd uintptr) bool {
					p := make([]byte, 100_000)
					n, _ := peekRaw(int(fd), p)
					seen = p[:max(n, 0)]
					return len(seen) >= want
				})
			}
		}
		read := started(until(6))
		for _, part := range []string{"th", "re", "e!"} {
			v.parked()
			requireNothing(t, read)
			_, err := s.Write([]byte(part))
			require.NoError(t, err)
		}
		require.NoError(t, <-read)
		require.Equal(t, "three!", string(seen))

		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		requireTimeout(t, until(7)())
		require.Equal(t, "three!", string(seen))
		requireTimeout(t, until(0)())
		require.NoError(t, c.SetReadDeadline(time.Time{}))

		written := started(func() error { _, err := s.Write(make([]byte, 200_000)); return err })
		require.Equal(t, bufio.ErrBufferFull, until(100_000)())
		_, err = io.CopyN(io.Discard, c, 200_006)
		require.NoError(t, err)
		require.NoError(t, <-written)

		require.NoError(t, s.CloseWrite())
		require.Equal(t, io.EOF, until(1)())
		require.NoError(t, c.Close())
		require.ErrorIs(t, until(0)(), net.ErrClosed)
	})
}

// What a program does to the descriptor fails, or stays without effect: it reaches nothing else.
func TestSyscallConnTakesNoBytesAndNoOptions(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		_, err := look(t, c, syscall.Write)
		require.Equal(t, syscall.EPIPE, err)
		_, err = look(t, c, func(fd int, _ []byte) (int, error) {
			return 0, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		})
		require.Equal(t, syscall.EOPNOTSUPP, err)
		raw, err := c.SyscallConn()
		require.NoError(t, err)
		require.ErrorIs(t, raw.Control(func(uintptr) { t.Error("called") }), errors.ErrUnsupported)
		require.ErrorIs(t, raw.Write(func(uintptr) bool { t.Error("called"); return true }), errors.ErrUnsupported)
		write(t, s, "as before")
		require.NoError(t, nextIs("as before", c))
	})
}

// Package net asks a reader for its descriptor, to have the kernel send what it reads: the
// bytes of a connection are copied, and each once.
func TestCopyToTCPGetsAllBytesOfALimitedConnection(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		to, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer to.Close()
		from, err := l.Accept()
		require.NoError(t, err)
		defer from.Close()
		file, err := os.Create(t.TempDir() + "/copy")
		require.NoError(t, err)
		defer file.Close()
		for _, w := range []io.Writer{to, file} {
			pattern(1).written(t, s, 0, 10_000)
			n, err := io.CopyN(w, c, 10_000)
			require.NoError(t, err)
			require.EqualValues(t, 10_000, n)
		}
		_, err = file.Seek(0, io.SeekStart)
		require.NoError(t, err)
		got := make([]byte, 10_000)
		for _, r := range []io.Reader{from, file} {
			_, err = io.ReadFull(r, got)
			require.NoError(t, err)
			require.NoError(t, pattern(1).check(got, 0))
		}
	})
}
