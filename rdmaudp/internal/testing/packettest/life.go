package packettest

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Deadlines, Close, and several goroutines.

func testReadDeadline(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	p := make([]byte, 100)
	require.NoError(t, b.SetReadDeadline(time.Unix(1, 0)))
	_, _, err := b.ReadFrom(p)
	requireTimeout(t, err, "read")
	require.NoError(t, b.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, _, err = b.ReadFrom(p)
	requireTimeout(t, err, "read")
	_, _, err = b.ReadFrom(p)
	requireTimeout(t, err, "read")
	send(t, a, b.LocalAddr(), []byte("late"))
	got, _ := receive(t, b) // which moves the deadline
	require.Equal(t, "late", string(got))
}

// A deadline that is set while a call waits ends the call.
func testReadDeadlineWakes(t *testing.T, n Network) {
	b := n.listen(t)
	ended := make(chan error, 1)
	for _, at := range []func() time.Time{
		func() time.Time { return time.Unix(1, 0) },
		func() time.Time { return time.Now().Add(20 * time.Millisecond) },
	} {
		require.NoError(t, b.SetReadDeadline(time.Time{}))
		go func() {
			_, _, err := b.ReadFrom(make([]byte, 100))
			ended <- err
		}()
		select {
		case err := <-ended:
			require.Fail(t, "the read has not waited", "%v", err)
		case <-time.After(50 * time.Millisecond):
		}
		require.NoError(t, b.SetReadDeadline(at()))
		select {
		case err := <-ended:
			requireTimeout(t, err, "read")
		case <-time.After(hang.After):
			require.Fail(t, "the read waits on")
		}
	}
}

func testWriteDeadline(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	require.NoError(t, a.SetWriteDeadline(time.Unix(1, 0)))
	sent, err := a.WriteTo([]byte("too late"), b.LocalAddr())
	requireTimeout(t, err, "write")
	require.Zero(t, sent)
	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	send(t, a, b.LocalAddr(), []byte("in time"))
	got, _ := receive(t, b)
	require.Equal(t, "in time", string(got))
}

func testClose(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	send(t, a, b.LocalAddr(), []byte("unread"))
	require.NoError(t, b.Close())
	p := make([]byte, 100)
	_, _, err := b.ReadFrom(p)
	requireOpError(t, err, "read", net.ErrClosed)
	_, err = b.(net.Conn).Read(nil)
	requireOpError(t, err, "read", net.ErrClosed)
	_, err = b.WriteTo(p, a.LocalAddr())
	requireOpError(t, err, "write", net.ErrClosed)
	requireOpError(t, b.Close(), "close", net.ErrClosed)
	for _, set := range []func(time.Time) error{b.SetDeadline, b.SetReadDeadline, b.SetWriteDeadline} {
		requireOpError(t, set(time.Now()), "set", net.ErrClosed)
	}
	require.NotNil(t, b.LocalAddr())
}

func testCloseWakes(t *testing.T, n Network) {
	const readers = 3
	b := n.listen(t)
	ended := make(chan error, readers)
	for range readers {
		go func() {
			_, _, err := b.ReadFrom(make([]byte, 100))
			ended <- err
		}()
	}
	time.Sleep(20 * time.Millisecond) // if they do not wait yet, they find it closed
	require.NoError(t, b.Close())
	for range readers {
		select {
		case err := <-ended:
			requireOpError(t, err, "read", net.ErrClosed)
		case <-time.After(hang.After):
			require.Fail(t, "a read waits on")
		}
	}
}

// Of several readers one receives each datagram, whichever goroutine has sent it.
func testSeveralReaders(t *testing.T, n Network) {
	const readers, writers = 4, 4
	a, b := n.listen(t), n.listen(t)
	each := n.Burst / writers
	got := make(chan uint64, readers*writers*each)
	var reading, writing sync.WaitGroup
	for range readers {
		reading.Go(func() {
			for p := make([]byte, 100); ; {
				read, _, err := b.ReadFrom(p)
				if err != nil {
					return
				}
				if read == 8 {
					got <- binary.BigEndian.Uint64(p)
				}
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				_, _ = a.WriteTo(binary.BigEndian.AppendUint64(nil, uint64(w*each+i)), b.LocalAddr())
			}
		})
	}
	writing.Wait()
	seen := make(map[uint64]bool)
	for range writers * each {
		select {
		case i := <-got:
			require.False(t, seen[i])
			seen[i] = true
		case <-time.After(hang.After):
			require.Fail(t, "datagrams are missing", "%d of %d have come", len(seen), writers*each)
		}
	}
	require.NoError(t, b.Close())
	reading.Wait()
}

// For the race detector: all methods at once, and Close meanwhile.
func testRacyUse(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	var all sync.WaitGroup
	for _, use := range []func(c, peer net.PacketConn) error{
		func(c, peer net.PacketConn) error { _, err := c.WriteTo([]byte("hello"), peer.LocalAddr()); return err },
		func(c, _ net.PacketConn) error { _, _, err := c.ReadFrom(make([]byte, 10)); return err },
		func(c, _ net.PacketConn) error { return c.SetReadDeadline(time.Now().Add(time.Millisecond)) },
		func(c, _ net.PacketConn) error { return c.SetWriteDeadline(time.Now().Add(time.Millisecond)) },
		func(c, _ net.PacketConn) error { return c.SetDeadline(time.Time{}) },
		func(c, _ net.PacketConn) error { _ = c.LocalAddr().String(); return nil },
	} {
		for _, ends := range [][2]net.PacketConn{{a, b}, {b, a}} {
			all.Go(func() {
				for range 200 {
					if err := use(ends[0], ends[1]); errors.Is(err, net.ErrClosed) {
						return
					}
				}
			})
		}
	}
	time.Sleep(5 * time.Millisecond)
	_ = a.Close()
	_ = b.Close()
	all.Wait()
}
