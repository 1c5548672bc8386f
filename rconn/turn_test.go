package rconn_test

import (
	"context"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// What others do while a goroutine has the turn at the device and no lock.

// heldFabric calls posted at the end of each PostSend of a dialing endpoint.
type heldFabric struct {
	fabric.Fabric
	posted func()
}

func (f *heldFabric) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return heldEndpoint{ep, f}, err
}

type heldEndpoint struct {
	fabric.Endpoint
	f *heldFabric
}

func (e heldEndpoint) PostSend(wr []fabric.WorkRequest) error {
	err := e.Endpoint.PostSend(wr)
	e.f.posted()
	return err
}

// whileAWriteIsPosting runs a test while a Write of n bytes on c is within
// PostSend, until it calls goOn. There are no keepalives that could help.
func whileAWriteIsPosting(t *testing.T, l sim.Link, n int, prepare func(c, s *rconn.Conn), test func(t *testing.T, c, s *rconn.Conn, goOn func())) {
	inside, leave := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool // the next post
	f := &heldFabric{Fabric: sim.New(l), posted: func() {
		if hold.CompareAndSwap(true, false) {
			close(inside)
			<-leave
		}
	}}
	cfg := &rconn.Config{KeepAlive: -1, Linger: 5 * time.Second}
	c, s := venue{Fabric: f, addr: simAddr}.connect(t, cfg, cfg)
	prepare(c, s)
	time.Sleep(20 * time.Millisecond) // no timer of the set-up helps either
	hold.Store(true)
	wrote := started(func() error { _, err := c.Write(make([]byte, n)); return err })
	<-inside
	test(t, c, s, func() {
		close(leave)
		<-wrote
	})
}

const stagedBytes = 1100 // more than goes without letting go of the lock

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
		require.NoError(t, s.SetReadDeadline(time.Now().Add(10*time.Second)))
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
		require.NoError(t, s.SetWriteDeadline(time.Now().Add(10*time.Second)))
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

// A Read that has the turn works for a Write as long as that finds it there,
// but not for ever: turns do not nest, and the dispatcher goes on after a few
// rounds.
func TestReadWorksForAWriteForABoundedTime(t *testing.T) {
	var deepest atomic.Int32
	f := &heldFabric{Fabric: sim.New(sim.Link{}), posted: func() {
		var pcs [512]uintptr
		frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
		turns, reads := int32(0), false
		for {
			f, more := frames.Next()
			if strings.HasSuffix(f.Function, ".(*Conn).turn") {
				turns++
			}
			reads = reads || strings.HasSuffix(f.Function, ".(*Conn).Read")
			if !more {
				break
			}
		}
		deepest.Store(max(deepest.Load(), turns)) // one goroutine posts at a time
		if reads {
			time.Sleep(time.Millisecond)
		}
	}}
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
	require.LessOrEqual(t, deepest.Load(), int32(2))
}

// A device that neither sends nor says so is given up, too.
func TestDeviceThatNeverCompletesIsGivenUp(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		var deaf atomic.Bool
		v.Fabric = deafFabric{v.Fabric, &deaf}
		c, _ := v.connect(t, nil, nil)
		deaf.Store(true)
		start := time.Now()
		_, err := c.Write(make([]byte, 4<<20))
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Less(t, time.Since(start), time.Minute)
	})
}

type deafFabric struct {
	fabric.Fabric
	deaf *atomic.Bool
}

func (f deafFabric) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return deafEndpoint{ep, f.deaf}, err
}

type deafEndpoint struct {
	fabric.Endpoint
	deaf *atomic.Bool
}

func (e deafEndpoint) PostSend(wr []fabric.WorkRequest) error {
	if e.deaf.Load() {
		return nil
	}
	return e.Endpoint.PostSend(wr)
}
