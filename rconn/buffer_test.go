package rconn_test

import (
	"bytes"
	"fmt"
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

// Bytes of buffers arrive in their place among those of Writes, whatever the sizes, and
// buffers are used again and again.
func TestBuffersArriveAmongWrites(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for i, shape := range shapes {
			client, server := v.connect(t, shape.dialer, shape.listener)
			r := random(t, uint64(i))
			total := v.times(4 << 20)
			two := []*rconn.Buffer{bufferFor(t, client, 100), bufferFor(t, client, 300<<10)}
			atOnce(t, func() error {
				for sent := 0; sent < total; {
					if r.IntN(2) == 0 {
						n := min(1+r.IntN(1<<r.IntN(17)), total-sent)
						if err := pattern(i).send(client, sent, n, n, r); err != nil {
							return err
						}
						sent += n
						continue
					}
					b := two[r.IntN(2)]
					b.Wait()
					for parts := 1 + r.IntN(3); parts > 0; parts-- {
						p := make([]byte, min(1+r.IntN(100<<10), total-sent))
						pattern(i).fill(p, sent)
						n, err := b.Write(p)
						if sent += n; n < len(p) {
							require.Equal(t, io.ErrShortWrite, err)
							break
						}
						require.NoError(t, err)
					}
					want := b.Len()
					if n, err := client.WriteBuffer(b); n != want || err != nil {
						return err
					}
				}
				return nil
			}, func() error { return pattern(i).receiveExactly(server, 0, total) })
			for _, b := range two {
				require.NoError(t, b.Close())
			}
		}
	})
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

func TestBufferIsFilledFromAReader(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		const size = 100_000
		p := make([]byte, size)
		pattern(1).fill(p, 0)
		r := bytes.NewReader(p)
		b := bufferFor(t, client, 32<<10)
		atOnce(t, func() error {
			for {
				b.Wait()
				if _, err := b.Fill(r); err != nil {
					require.Equal(t, io.EOF, err)
					return client.CloseWrite()
				}
				if _, err := client.WriteBuffer(b); err != nil {
					return err
				}
			}
		}, func() error { return pattern(1).receiveExactly(server, 0, size) })
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

// BenchmarkWriteBuffer reads bytes from a reader and writes them, with a slice and Write,
// and with two buffers, while the peer drops them.
func BenchmarkWriteBuffer(b *testing.B) {
	benchEachFabric(b, func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn)) {
		for _, size := range []int{64 << 10, 1 << 20} {
			from := make([]byte, size)
			run := func(name string, prepare func(b *testing.B, c *rconn.Conn) func(r io.Reader) error) {
				b.Run(fmt.Sprintf("%d/%s", size, name), func(b *testing.B) {
					client, server := connect(b)
					go drop(server)
					write := prepare(b, client)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					r := bytes.NewReader(nil)
					for b.Loop() {
						r.Reset(from)
						if err := write(r); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			run("Write", func(_ *testing.B, c *rconn.Conn) func(io.Reader) error {
				p := make([]byte, size)
				return func(r io.Reader) error {
					_, err := io.ReadFull(r, p)
					if err == nil {
						_, err = c.Write(p)
					}
					return err
				}
			})
			run("WriteBuffer", func(b *testing.B, c *rconn.Conn) func(io.Reader) error {
				var two [2]*rconn.Buffer
				for i := range two {
					var err error
					two[i], err = c.NewBuffer(size)
					require.NoError(b, err)
					b.Cleanup(func() { _ = two[i].Close() })
				}
				turn := 0
				return func(r io.Reader) error {
					turn++
					next := two[turn%2]
					next.Wait()
					_, err := next.Fill(r)
					if err == nil {
						_, err = c.WriteBuffer(next)
					}
					return err
				}
			})
		}
	})
}

// drop discards all that arrives, without a copy.
func drop(c *rconn.Conn) {
	for {
		if _, err := c.Peek(1); err != nil {
			return
		}
		if _, err := c.Discard(c.Buffered()); err != nil {
			return
		}
	}
}
