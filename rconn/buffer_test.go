package rconn_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
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
		write(t, b, "hello")
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
		write(t, b, ", again")
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

// cut cuts b into several buffers, some of them empty.
func cut(b []byte, r *rand.Rand) (bufs net.Buffers) {
	for range r.IntN(20) {
		n := r.IntN(1 + r.IntN(len(b)+1))
		bufs = append(bufs, b[:n:n])
		b = b[n:]
	}
	return append(bufs, b)
}

func sizeOf(bufs net.Buffers) (n int) {
	for _, b := range bufs {
		n += len(b)
	}
	return n
}

// WriteBuffers sends several buffers as one message, like one Write of their bytes.
func TestBuffersAreOneMessage(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for _, sizes := range [][]int{
			{1, 2, 3, 4},
			{0, 100, 0, 0, 100, 0},
			{200, 16 << 10},
			{16 << 10, 200},
			{100, 64<<10 - 200, 100},
			make([]int, 1000),
		} {
			client, server := v.connect(t, nil, nil)
			var bufs net.Buffers
			total := 0
			for _, n := range sizes {
				b := make([]byte, n)
				pattern(1).fill(b, total)
				bufs = append(bufs, b)
				total += n
			}
			pieces := append(net.Buffers(nil), bufs...)
			n, err := client.WriteBuffers(&bufs)
			require.NoError(t, err)
			require.EqualValues(t, total, n)
			require.Empty(t, bufs)
			for _, b := range pieces {
				clear(b) // Write no longer needs the bytes
			}
			require.NoError(t, pattern(1).receiveExactly(server, 0, total))
			require.EqualValues(t, min(total, 1), client.Stats().MessagesSent, "%d buffers, %d bytes", len(sizes), total)
		}
	})
}

// WriteBuffers is one Write: bytes that others write at the same time arrive before or
// after all of it.
func TestBuffersAreNotMixedWithOtherWrites(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, tight, tight)
		const writers = 4
		records := v.times(200)
		var all []func() error
		for w := range writers {
			all = append(all, func() error {
				r := rand.New(rand.NewPCG(7, uint64(w)))
				for range records {
					b := make([]byte, 5+r.IntN(10_000))
					binary.BigEndian.PutUint32(b, uint32(len(b)-5))
					b[4] = byte(w)
					pattern(w).fill(b[5:], 0)
					if w == 0 {
						if _, err := client.Write(b); err != nil {
							return err
						}
						continue
					}
					bufs := cut(b, r)
					if _, err := client.WriteBuffers(&bufs); err != nil {
						return err
					}
				}
				return nil
			})
		}
		all = append(all, func() error {
			for range writers * records {
				var header [5]byte
				if _, err := io.ReadFull(server, header[:]); err != nil {
					return err
				}
				n := binary.BigEndian.Uint32(header[:])
				if n > 10_000 {
					return fmt.Errorf("a record of %d bytes", n)
				}
				if err := pattern(header[4]).receiveExactly(server, 0, int(n)); err != nil {
					return err
				}
			}
			return nil
		})
		atOnce(t, all...)
	})
}

// WriteBuffers of no buffers, or of empty ones, writes nothing, and returns the error that
// a Write would.
func TestBuffersThatAreEmpty(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, _ := v.connect(t, nil, nil)
		write := func(bufs ...[]byte) error {
			v := net.Buffers(bufs)
			n, err := client.WriteBuffers(&v)
			require.Zero(t, n)
			return err
		}
		require.NoError(t, write())
		require.NoError(t, write(nil, []byte{}))
		require.Zero(t, client.Stats().MessagesSent)
		require.NoError(t, client.CloseWrite())
		require.ErrorIs(t, write(), syscall.EPIPE)
		require.ErrorIs(t, write([]byte("x")), syscall.EPIPE)
		require.NoError(t, client.Close())
		require.ErrorIs(t, write(), net.ErrClosed)
	})
}
