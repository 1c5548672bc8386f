package rconn_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/testing/limits"
	"github.com/ringnet/ringnet/rconn"
)

// What each call returns in each state of a connection is what it returns over TCP on this system.

// tcpLike is what a *net.TCPConn and a *rconn.Conn have in common.
type tcpLike interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
}

// noticed waits until something has happened to a connection that a Read would return, without reading.
func noticed(t *testing.T, c tcpLike) {
	t.Helper()
	if c, ok := c.(*rconn.Conn); ok {
		require.NoError(t, c.AwaitRead())
		return
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
	}))
	require.NoError(t, err)
}

// states are those of c.
var states = map[string]func(t *testing.T, c, s tcpLike){
	"open":             func(*testing.T, tcpLike, tcpLike) {},
	"the peer's FIN":   theirFIN,
	"its own FIN":      ownFIN,
	"both, its first":  func(t *testing.T, c, s tcpLike) { ownFIN(t, c, s); theirFIN(t, c, s) },
	"both, its second": func(t *testing.T, c, s tcpLike) { theirFIN(t, c, s); ownFIN(t, c, s) },
	"the peer's FIN, read": func(t *testing.T, c, s tcpLike) {
		theirFIN(t, c, s)
		require.Equal(t, io.EOF, nextIs("x", c))
	},
	"closed for reading": func(t *testing.T, c, s tcpLike) { require.NoError(t, c.CloseRead()) },
	"reset":              reset,
	"reset, read": func(t *testing.T, c, s tcpLike) {
		reset(t, c, s)
		require.ErrorIs(t, nextIs("x", c), unix.ECONNRESET)
	},
	"reset behind its own FIN": func(t *testing.T, c, s tcpLike) { ownFIN(t, c, s); reset(t, c, s) },
	"closed":                   func(t *testing.T, c, s tcpLike) { require.NoError(t, c.Close()) },
}

func theirFIN(t *testing.T, c, s tcpLike) {
	require.NoError(t, s.CloseWrite())
	noticed(t, c)
}

func ownFIN(t *testing.T, c, s tcpLike) { theirFIN(t, s, c) }

func reset(t *testing.T, c, s tcpLike) {
	require.NoError(t, s.SetLinger(0))
	require.NoError(t, s.Close())
	noticed(t, c)
}

// moves are calls.
var moves = map[string]func(c tcpLike) error{
	"Read": func(c tcpLike) error {
		_, err := c.Read(make([]byte, 1))
		return err
	},
	"Write":         func(c tcpLike) error { _, err := c.Write([]byte("x")); return err },
	"CloseRead":     tcpLike.CloseRead,
	"CloseWrite":    tcpLike.CloseWrite,
	"Close":         tcpLike.Close,
	"SetLinger":     func(c tcpLike) error { return c.SetLinger(1) },
	"SetReadBuffer": func(c tcpLike) error { return c.(interface{ SetReadBuffer(int) error }).SetReadBuffer(1 << 16) },
	"WriteTo": func(c tcpLike) error {
		_, err := c.(io.WriterTo).WriteTo(io.Discard)
		return err
	},
	"ReadFrom": func(c tcpLike) error { _, err := c.(io.ReaderFrom).ReadFrom(endlessFile()); return err },
	"Read after the deadline": func(c tcpLike) error {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		_, err := c.Read(make([]byte, 1))
		return err
	},
}

// endlessFile is a reader of one byte.
func endlessFile() io.Reader { return io.LimitReader(oneByte{}, 1) }

type oneByte struct{}

func (oneByte) Read(p []byte) (int, error) { return copy(p, "x"), nil }

// differs is what calls return other than TCP's: the reason of an end stays what it was, where TCP tells it
// once, and then says EOF or EPIPE.
var differs = func() map[string]string {
	all := make(map[string]string)
	for _, state := range []string{"reset", "reset, read", "reset behind its own FIN"} {
		all[state+", Read"] = "read to: read: connection reset by peer, the same"
		all[state+", WriteTo"] = "writeto to: read ADDRESSES: read: connection reset by peer, the same"
		all[state+", Write"] = "write to: write: connection reset by peer, the same"
		all[state+", ReadFrom"] = "readfrom to: write ADDRESSES: write: connection reset by peer, the same"
	}
	return all
}()

// addresses are in the text of an error in an error.
var addresses = regexp.MustCompile(`\S+ \S+:\d+->\S+:\d+`)

// outcome is what a call returns, made twice.
func outcome(call func() error) string {
	first, second := told(call()), told(call())
	if second == first {
		second = "the same"
	}
	return addresses.ReplaceAllString(first+", "+second, "ADDRESSES")
}

func told(err error) string {
	op, ok := err.(*net.OpError)
	switch {
	case !ok:
		return fmt.Sprint(err)
	case op.Net == "" || op.Addr == nil:
		return fmt.Sprintf("%v, without a network or an address", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return op.Op + " timeout"
	case op.Source == nil:
		return fmt.Sprintf("%s at: %v", op.Op, op.Err)
	}
	return fmt.Sprintf("%s to: %v", op.Op, op.Err)
}

// pairOverTCP is both ends of a connection.
func pairOverTCP(t *testing.T) (c, s tcpLike) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		dialed.Close()
		accepted.Close()
	})
	return dialed.(*net.TCPConn), accepted.(*net.TCPConn)
}

// inEachState calls test for each call in each state in which it does not wait.
func inEachState(test func(what string, enter func(t *testing.T, c, s tcpLike), call func(c tcpLike) error)) {
	for state, enter := range states {
		for name, call := range moves {
			nothingCame := state == "open" || state == "its own FIN"
			if nothingCame && (name == "Read" || name == "WriteTo") {
				continue
			}
			test(state+", "+name, enter, call)
		}
	}
}

func TestCallsReturnInEachStateWhatTCPsReturn(t *testing.T) {
	limits.NeedDescriptors(t, 800) // for each pair stays until the end of its test
	want := make(map[string]string)
	inEachState(func(what string, enter func(t *testing.T, c, s tcpLike), call func(c tcpLike) error) {
		c, s := pairOverTCP(t)
		enter(t, c, s)
		want[what] = outcome(func() error { return call(c) })
	})
	overEachFabric(t, func(t *testing.T, v venue) {
		inEachState(func(what string, enter func(t *testing.T, c, s tcpLike), call func(c tcpLike) error) {
			c, s := v.connect(t, nil, nil)
			enter(t, c, s)
			got := outcome(func() error { return call(c) })
			if ours, ok := differs[what]; ok {
				assert.Equal(t, ours, got, what)
				assert.NotEqual(t, want[what], got, "%s: this is TCP's", what)
			} else {
				assert.Equal(t, want[what], got, what)
			}
		})
	})
}
