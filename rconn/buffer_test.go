package rconn_test

import (
	"bytes"
	"io"
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// bufferFor returns a buffer that the end of the test closes, if the test has not.
func bufferFor(t *testing.T, c *rconn.Conn, size int) *rconn.Buffer {
	t.Helper()
	b, err := c.NewBuffer(size)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// Until the device has given a buffer back, it cannot be filled or written, and none of its
// methods tells what it holds.
func TestBufferThatIsHandedOver(t *testing.T) {
	inVirtualTime(t, sim.Link{Latency: time.Second}, func(t *testing.T, v simVenue) {
		client, server := v.connect(t, nil, nil)
		b := bufferFor(t, client, 1000)
		b.Wait() // the buffer is not handed over
		_, err := b.Write([]byte("hello"))
		require.NoError(t, err)
		n, err := client.WriteBuffer(b)
		require.NoError(t, err)
		require.Equal(t, 5, n)

		_, err = b.Write([]byte("x"))
		require.Equal(t, rconn.ErrHandedOver, err)
		_, err = b.Fill(bytes.NewReader([]byte("x")))
		require.Equal(t, rconn.ErrHandedOver, err)
		_, err = client.WriteBuffer(b)
		require.ErrorIs(t, err, rconn.ErrHandedOver)
		start := time.Now()
		b.Wait()
		require.Equal(t, 2*time.Second, time.Since(start), "until it is acknowledged")
		_, err = b.Write([]byte(", again"))
		require.NoError(t, err)
		_, err = client.WriteBuffer(b)
		require.NoError(t, err)
		got := make([]byte, 12)
		_, err = io.ReadFull(server, got)
		require.NoError(t, err)
		require.Equal(t, "hello, again", string(got))

		require.NoError(t, b.Close())
		require.Error(t, b.Close())
		_, err = b.Write([]byte("x"))
		require.Error(t, err)
		_, err = client.WriteBuffer(b)
		require.Error(t, err)
		_, err = server.WriteBuffer(bufferFor(t, client, 1))
		require.ErrorContains(t, err, "another connection")
		full := bufferFor(t, client, 1)
		_, err = full.Fill(bytes.NewReader(make([]byte, 1<<20)))
		require.NoError(t, err)
		_, err = full.Fill(bytes.NewReader([]byte("x")))
		require.Equal(t, io.ErrShortBuffer, err)
		_, err = client.NewBuffer(0)
		require.Error(t, err)
	})
}

// At the deadline the buffer still holds the bytes for which the peer had no room.
func TestBufferKeepsWhatWasNotAccepted(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, tight, tight)
		const size = 20_000
		p := make([]byte, size)
		pattern(1).fill(p, 0)
		b := bufferFor(t, client, size)
		_, err := b.Write(p)
		require.NoError(t, err)
		timeOutAfter(client, 4<<10)
		n, err := client.WriteBuffer(b)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 4<<10, n, "the peer's ring")
		b.Wait() // returns although the peer's application does nothing
		require.Equal(t, size-n, b.Len())
		require.NoError(t, client.SetWriteDeadline(time.Time{}))
		atOnce(t, func() error {
			_, err := client.WriteBuffer(b)
			return err
		}, func() error { return pattern(1).receiveExactly(server, 0, size) })
	})
}

// When a connection is closed or lost, its buffers come back. Their memory stays until they
// are closed.
func TestBuffersOutliveTheConnection(t *testing.T) {
	for name, end := range map[string]func(v simVenue, c *rconn.Conn){
		"closed":    func(_ simVenue, c *rconn.Conn) { _ = c.Close() },
		"discarded": func(_ simVenue, c *rconn.Conn) { _ = c.SetLinger(0); _ = c.Close() },
		"lost":      func(v simVenue, c *rconn.Conn) { v.endpoint(c).Fail(fabric.ErrQueuePair) },
		"cut":       func(v simVenue, _ *rconn.Conn) { v.Cut(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, sim.Link{Latency: time.Millisecond}, func(t *testing.T, v simVenue) {
				client, server := v.connect(t, tight, tight)
				b := bufferFor(t, client, 64<<10)
				_, err := b.Write(make([]byte, 64<<10))
				require.NoError(t, err)
				written := started(func() error { _, err := client.WriteBuffer(b); return err })
				v.parked()
				end(v, client)
				require.Error(t, <-written)
				b.Wait()
				require.Positive(t, b.Len(), "of which there was no room")
				_, err = b.Fill(bytes.NewReader(nil))
				require.Equal(t, io.EOF, err)
				_, err = client.WriteBuffer(b)
				require.Error(t, err)
				_ = client.Close()
				_ = server.Close()
				require.NoError(t, b.Close())
			})
		})
	}
}

func TestBufferWithoutMemoryIsAnError(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		client, _ := v.connect(t, nil, nil)
		_, err := client.NewBuffer(math.MaxInt / 2)
		require.ErrorIs(t, err, syscall.ENOMEM)
	})
}
