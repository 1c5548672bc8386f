package rconn_test

import (
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/rconn"
)

// The tests here make calls while another goroutine is within PostSend, without the lock of
// the link.

// thenDo returns a hook that posts and then calls posted.
func thenDo(posted func()) func(post func() error) error {
	return func(post func() error) error {
		err := post()
		posted()
		return err
	}
}

// whileAWriteIsPosting runs a test while a Write of n bytes on c is within PostSend, until
// it calls goOn. No keepalive wakes a goroutine meanwhile.
func whileAWriteIsPosting(t *testing.T, l sim.Link, n int, prepare func(c, s *rconn.Conn), test func(t *testing.T, c, s *rconn.Conn, goOn func())) {
	inside, leave := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool // have the next post wait
	f := &hooked{Fabric: sim.New(l), postSend: thenDo(func() {
		if hold.CompareAndSwap(true, false) {
			close(inside)
			<-leave
		}
	})}
	cfg := &rconn.Config{KeepAlive: -1, Linger: 5 * time.Second}
	c, s := venue{Fabric: f, addr: simAddr}.connect(t, cfg, cfg)
	prepare(c, s)
	time.Sleep(20 * time.Millisecond) // until the timers of the set-up have passed
	hold.Store(true)
	wrote := started(func() error { _, err := c.Write(make([]byte, n)); return err })
	<-inside
	test(t, c, s, func() {
		close(leave)
		<-wrote
	})
}

const stagedBytes = 1100 // so many that the lock is released while they are posted

func nothing(_, _ *rconn.Conn) {}

func TestCloseWhilePosting(t *testing.T) {
	whileAWriteIsPosting(t, sim.Link{}, stagedBytes, nothing, func(t *testing.T, c, s *rconn.Conn, goOn func()) {
		closed := started(c.Close)
		time.Sleep(20 * time.Millisecond)
		goOn()
		require.NoError(t, <-closed)
		_, err := io.Copy(io.Discard, s)
		require.NoError(t, err)
	})
}

func TestCloseWriteWhilePosting(t *testing.T) {
	whileAWriteIsPosting(t, sim.Link{}, stagedBytes, nothing, func(t *testing.T, c, s *rconn.Conn, goOn func()) {
		require.NoError(t, c.CloseWrite())
		goOn()
		require.NoError(t, s.SetReadDeadline(time.Now().Add(hang.After)))
		_, err := io.Copy(io.Discard, s)
		require.NoError(t, err)
	})
}

func TestCloseReadWhilePosting(t *testing.T) {
	full := func(_, s *rconn.Conn) {
		require.NoError(t, s.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		_, err := s.Write(make([]byte, 4<<20))
		require.Error(t, err)
	}
	whileAWriteIsPosting(t, sim.Link{}, stagedBytes, full, func(t *testing.T, c, s *rconn.Conn, goOn func()) {
		closed := started(c.CloseRead)
		time.Sleep(20 * time.Millisecond)
		goOn()
		require.NoError(t, <-closed)
		require.NoError(t, s.SetWriteDeadline(time.Now().Add(hang.After)))
		_, err := s.Write(make([]byte, 4<<20))
		require.NoError(t, err, "what was discarded made room")
	})
}

func TestCloseReadOfAParkedReadWhilePostingInline(t *testing.T) {
	var read <-chan error
	parked := func(c, _ *rconn.Conn) {
		read = started(func() error { _, err := c.Read(make([]byte, 10)); return err })
	}
	whileAWriteIsPosting(t, sim.Link{Inline: 1 << 20}, 8000, parked, func(t *testing.T, c, s *rconn.Conn, goOn func()) {
		closed := started(c.CloseRead)
		time.Sleep(20 * time.Millisecond)
		goOn()
		require.Equal(t, io.EOF, <-read)
		require.NoError(t, <-closed)
	})
}

func TestCloseWhilePostingNoticesUnreadBytes(t *testing.T) {
	whileAWriteIsPosting(t, sim.Link{}, stagedBytes, nothing, func(t *testing.T, c, s *rconn.Conn, goOn func()) {
		_, err := s.Write(make([]byte, 100))
		require.NoError(t, err)
		time.Sleep(20 * time.Millisecond)
		closed := started(c.Close)
		time.Sleep(20 * time.Millisecond)
		goOn()
		require.NoError(t, <-closed)
		_, err = io.Copy(io.Discard, s)
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// A Read that is posting also posts what a Write gives it meanwhile. It does so in one call
// of trySend, which does not nest, and the engine goes on after a few rounds: so the Read
// ends, however long the Writes go on.
func TestReadWorksForAWriteForABoundedTime(t *testing.T) {
	var deepest atomic.Int32
	f := &hooked{Fabric: sim.New(sim.Link{}), postSend: thenDo(func() {
		var pcs [512]uintptr
		frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
		nested, reads := int32(0), false
		for {
			f, more := frames.Next()
			if strings.HasSuffix(f.Function, ".(*Link).trySend") {
				nested++
			}
			reads = reads || strings.HasSuffix(f.Function, ".(*Conn).Read")
			if !more {
				break
			}
		}
		deepest.Store(max(deepest.Load(), nested)) // one goroutine posts at a time
		if reads {
			time.Sleep(time.Millisecond)
		}
	})}
	cfg := &rconn.Config{KeepAlive: -1}
	c, s := venue{Fabric: f, addr: simAddr}.connect(t, cfg, cfg)
	go io.Copy(io.Discard, s)
	end := time.Now().Add(time.Second)
	wrote := started(func() error {
		for time.Now().Before(end) {
			if _, err := c.Write(make([]byte, 3000)); err != nil {
				return err
			}
			time.Sleep(50 * time.Microsecond)
		}
		return nil
	})
	for time.Now().Before(end) {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
		_, err := c.Read(make([]byte, 10))
		require.Error(t, err)
	}
	require.NoError(t, <-wrote)
	require.EqualValues(t, 1, deepest.Load())
}

// A device that neither sends nor reports an error is given up, too.
func TestDeviceThatNeverCompletesIsGivenUp(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		var silent atomic.Bool
		v.Fabric = &hooked{Fabric: v.Fabric, postSend: func(post func() error) error {
			if silent.Load() {
				return nil
			}
			return post()
		}}
		c, _ := v.connect(t, nil, nil)
		silent.Store(true)
		start := time.Now()
		_, err := c.Write(make([]byte, 4<<20))
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Less(t, time.Since(start), time.Minute)
	})
}
