package rconn_test

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/rconn"
)

// What Close returns when the connection was lost before. Tests of package link have those ways to
// lose one that take a peer of another kind, and package integration has processes that are killed.

// losses are ways to lose a connection to which c has written, and the error of all calls then.
var losses = map[string]struct {
	lose func(v simVenue, c, s *rconn.Conn)
	err  error
}{
	"the peer's process is killed":          {func(v simVenue, _, s *rconn.Conn) { v.endpoint(s).Kill() }, syscall.ECONNRESET},
	"the path, for longer than it may take": {func(v simVenue, _, _ *rconn.Conn) { v.Cut(true) }, syscall.ETIMEDOUT},
	"the device is removed":                 {func(v simVenue, _, _ *rconn.Conn) { v.RemoveDevice() }, syscall.ENETDOWN},
	"the queue pair fails":                  {func(v simVenue, c, _ *rconn.Conn) { v.endpoint(c).Fail(fabric.ErrQueuePair) }, syscall.ECONNRESET},
	"the peer does not linger": {func(_ simVenue, _, s *rconn.Conn) {
		_ = s.SetLinger(0)
		_ = s.Close()
	}, syscall.ECONNRESET},
	"the peer closes with bytes unread": {func(_ simVenue, _, s *rconn.Conn) { _ = s.Close() }, syscall.ECONNRESET},
	"the peer half-closes, and is killed": {func(v simVenue, _, s *rconn.Conn) {
		_ = s.CloseWrite()
		time.Sleep(time.Second)
		v.endpoint(s).Kill()
	}, syscall.EPIPE},
}

// lost runs a test of a connection that is lost in each way; lose loses it, and returns when all is
// known of that.
func lost(t *testing.T, test func(t *testing.T, v simVenue, c, s *rconn.Conn, lose func(), err error)) {
	for name, way := range losses {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				c, s := v.connect(t, nil, nil)
				test(t, v, c, s, func() {
					time.Sleep(time.Second) // until what is under way has arrived
					way.lose(v, c, s)
					time.Sleep(time.Minute)
				}, way.err)
			})
		})
	}
}

// Nobody has read what was written, and no call has said so.
func TestCloseOfALostConnectionSaysWhatWasLost(t *testing.T) {
	lost(t, func(t *testing.T, _ simVenue, c, _ *rconn.Conn, lose func(), want error) {
		_, err := c.Write(make([]byte, 8<<10))
		require.NoError(t, err)
		lose()
		err = c.Close()
		require.ErrorIs(t, err, want)
		require.IsType(t, (*net.OpError)(nil), err)
		require.ErrorIs(t, c.Close(), net.ErrClosed)
	})
}

// The peer has taken the end behind the bytes, but no process has.
func TestCloseOfALostConnectionSaysWhatWasLostBehindCloseWrite(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		v.endpoint(s).HoldReceives(true)
		write(t, c, "lost")
		require.NoError(t, c.CloseWrite())
		time.Sleep(time.Second)
		v.endpoint(s).Kill()
		time.Sleep(time.Second)
		require.ErrorIs(t, c.Close(), syscall.ECONNRESET)
	})
}

// A call that has returned why the connection was lost is enough, and only such a call.
func TestCloseOfALostConnectionSaysNothingTwice(t *testing.T) {
	for name, tt := range map[string]struct {
		call  func(c *rconn.Conn) error
		tells bool
	}{
		"Read":    {func(c *rconn.Conn) error { _, err := c.Read(make([]byte, 1)); return err }, true},
		"Peek":    {func(c *rconn.Conn) error { _, err := c.Peek(1); return err }, true},
		"Discard": {func(c *rconn.Conn) error { _, err := c.Discard(1); return err }, true},
		"WriteTo": {func(c *rconn.Conn) error { _, err := c.WriteTo(io.Discard); return err }, true},
		"Write":   {func(c *rconn.Conn) error { _, err := c.Write([]byte("x")); return err }, true},
		"WriteBuffers": {func(c *rconn.Conn) error {
			_, err := c.WriteBuffers(&net.Buffers{[]byte("x")})
			return err
		}, true},
		"AwaitRead": {func(c *rconn.Conn) error { return c.AwaitRead() }, false},
		"Read with a deadline that has passed": {func(c *rconn.Conn) error {
			_ = c.SetReadDeadline(time.Unix(1, 0))
			_, err := c.Read(make([]byte, 1))
			return err
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			lost(t, func(t *testing.T, _ simVenue, c, _ *rconn.Conn, lose func(), want error) {
				write(t, c, "lost")
				lose()
				err := tt.call(c)
				if !tt.tells || want == syscall.EPIPE && err == io.EOF {
					require.ErrorIs(t, c.Close(), want)
					return
				}
				if want != syscall.EPIPE || err != nil { // io.Copy does not return io.EOF
					require.ErrorIs(t, err, want)
					want = nil
				}
				require.ErrorIs(t, c.Close(), want)
			})
		})
	}
}

// With nothing written there is nothing to lose.
func TestCloseOfALostConnectionOnWhichNothingWasWritten(t *testing.T) {
	lost(t, func(t *testing.T, _ simVenue, c, s *rconn.Conn, lose func(), _ error) {
		write(t, s, "read")
		require.NoError(t, nextIs("read", c))
		lose()
		require.NoError(t, c.Close())
	})
}

// A peer that closes says how much it has read: its process may end as soon as it has closed.
func TestCloseAfterAPeerThatHasReadAllAndIsGone(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c, s *rconn.Conn){
		"the peer closes": func(t *testing.T, c, s *rconn.Conn) { require.NoError(t, s.Close()) },
		"the peer half-closes first": func(t *testing.T, c, s *rconn.Conn) {
			require.NoError(t, s.CloseWrite())
			time.Sleep(time.Second)
			write(t, c, "more")
			require.NoError(t, nextIs("more", s))
			require.NoError(t, s.Close())
		},
		"this end has half-closed": func(t *testing.T, c, s *rconn.Conn) {
			require.NoError(t, c.CloseWrite())
			require.Equal(t, io.EOF, nextIs("x", s))
			require.NoError(t, s.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				c, s := v.connect(t, nil, nil)
				write(t, c, "request")
				require.NoError(t, nextIs("request", s))
				write(t, s, "answer")
				end(t, c, s)
				v.endpoint(s).Kill()
				require.NoError(t, nextIs("answer", c))
				require.Equal(t, io.EOF, nextIs("x", c))
				time.Sleep(time.Second)
				require.NoError(t, c.Close())
			})
		})
	}
}

// The peer has read all that had come when it closed, and then more came.
func TestCloseSaysThatThePeerHadClosedBefore(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		require.NoError(t, s.Close())
		write(t, c, "nobody reads this")
		time.Sleep(time.Second)
		require.ErrorIs(t, c.Close(), syscall.EPIPE)
	})
}

// The peer's reset comes while nobody calls anything.
func TestCloseSaysThatThePeerHasReset(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for _, linger := range []int{-1, 0} {
			c, s := v.connect(t, nil, nil)
			write(t, c, "unread")
			require.NoError(t, s.AwaitRead())
			require.NoError(t, s.SetLinger(linger))
			require.NoError(t, s.Close())
			require.NoError(t, c.AwaitRead())
			require.ErrorIs(t, c.Close(), syscall.ECONNRESET)
		}
	})
}
