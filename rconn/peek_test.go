package rconn_test

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/rconn"
)

// written writes n bytes of the pattern from the given position on.
func (p pattern) written(t *testing.T, c *rconn.Conn, from, n int) {
	t.Helper()
	b := make([]byte, n)
	p.fill(b, from)
	_, err := c.Write(b)
	require.NoError(t, err)
}

func TestPeekLeavesWhatItReturns(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		pattern(1).written(t, client, 0, 100)
		for _, n := range []int{1, 40, 100, 60, 0} {
			p, err := server.Peek(n)
			require.NoError(t, err)
			require.Len(t, p, n)
			require.NoError(t, pattern(1).check(p, 0))
			require.Len(t, p, cap(p), "append would write to the ring")
		}
		require.Equal(t, 100, server.Buffered())
		n, err := server.Discard(30)
		require.NoError(t, err)
		require.Equal(t, 30, n)
		require.Equal(t, 70, server.Buffered())
		b := make([]byte, 20)
		_, err = io.ReadFull(server, b)
		require.NoError(t, err)
		require.NoError(t, pattern(1).check(b, 30))
		p, err := server.Peek(50)
		require.NoError(t, err)
		require.NoError(t, pattern(1).check(p, 50))
		n, err = server.Discard(50)
		require.NoError(t, err)
		require.Equal(t, 50, n)
		require.Zero(t, server.Buffered())
		for _, n := range []int{-1, math.MinInt} {
			_, err = server.Peek(n)
			require.Equal(t, bufio.ErrNegativeCount, err)
			_, err = server.Discard(n)
			require.Equal(t, bufio.ErrNegativeCount, err)
		}
	})
}

func TestPeekWaitsForAllThatFits(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		type result struct {
			p   []byte
			err error
		}
		peeked := started(func() result { p, err := server.Peek(3000); return result{p, err} })
		for from := 0; from < 3000; from += 1000 {
			v.parked()
			require.Empty(t, peeked)
			pattern(1).written(t, client, from, 1000)
		}
		got := <-peeked
		require.NoError(t, got.err)
		require.Len(t, got.p, 3000)
		require.NoError(t, pattern(1).check(got.p, 0))

		discarded := started(func() error { _, err := server.Discard(5000); return err })
		pattern(1).written(t, client, 3000, 1000)
		v.parked()
		require.Empty(t, discarded)
		pattern(1).written(t, client, 4000, 1001)
		require.NoError(t, <-discarded)
		p, err := server.Peek(1)
		require.NoError(t, err)
		require.NoError(t, pattern(1).check(p, 5000))
	})
}

// At the end of the ring, Peek returns the bytes before it.
func TestPeekEndsWhereTheRingDoes(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, tight, tight)
		const ring = 4 << 10
		pattern(1).written(t, client, 0, ring-1000)
		_, err := server.Discard(ring - 1000)
		require.NoError(t, err)
		pattern(1).written(t, client, ring-1000, 1500)
		require.NoError(t, server.AwaitRead())
		p, err := server.Peek(999)
		require.NoError(t, err)
		require.Len(t, p, 999)
		p, err = server.Peek(1400)
		require.Equal(t, bufio.ErrBufferFull, err)
		require.Len(t, p, 1000)
		require.NoError(t, pattern(1).check(p, ring-1000))
		require.Equal(t, 1000, server.Buffered())
		_, err = server.Discard(1200) // past the end of the ring
		require.NoError(t, err)
		p, err = server.Peek(300)
		require.NoError(t, err)
		require.NoError(t, pattern(1).check(p, ring+200))

		// Peek does not wait for bytes that will be at the other end of the ring.
		_, err = server.Discard(300)
		require.NoError(t, err)
		pattern(1).written(t, client, ring+500, ring-500)
		p, err = server.Peek(ring - 500)
		require.NoError(t, err)
		require.NoError(t, pattern(1).check(p, ring+500))
		_, err = server.Discard(ring - 1500)
		require.NoError(t, err)
		p, err = server.Peek(1001)
		require.Equal(t, bufio.ErrBufferFull, err)
		require.Len(t, p, 1000)

		// The end of the stream comes after those, too.
		pattern(1).written(t, client, 2*ring, 10)
		require.NoError(t, client.CloseWrite())
		type result struct {
			n   int
			err error
		}
		for _, want := range []result{{1000, bufio.ErrBufferFull}, {10, io.EOF}} {
			v.parked()
			p, err := server.Peek(1011)
			require.Equal(t, want, result{len(p), err})
			_, err = server.Discard(len(p))
			require.NoError(t, err)
		}
	})
}

// Peek of more bytes than fit into the ring does not wait for ever: the peer has no room
// for them.
func TestPeekOfMoreThanTheRingTakes(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for _, first := range []int{0, 100, 3000} {
			client, server := v.connect(t, tight, tight)
			const total = 20_000
			sent := started(func() error {
				return pattern(1).send(client, 0, total, total, rand.New(rand.NewPCG(1, 1)))
			})
			_, err := server.Discard(first)
			require.NoError(t, err)
			p, err := server.Peek(1 << 30)
			require.Equal(t, bufio.ErrBufferFull, err)
			require.NotEmpty(t, p)
			require.NoError(t, pattern(1).check(p, first))
			require.NoError(t, pattern(1).receiveExactly(server, first, total-first))
			require.NoError(t, <-sent)
		}
	})
}

func TestPeekAtTheEnd(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		pattern(1).written(t, client, 0, 10)
		require.NoError(t, client.CloseWrite())
		p, err := server.Peek(11)
		require.Equal(t, io.EOF, err)
		require.Len(t, p, 10)
		require.NoError(t, pattern(1).check(p, 0))
		p, err = server.Peek(10)
		require.NoError(t, err)
		require.Len(t, p, 10)
		n, err := server.Discard(11)
		require.Equal(t, io.EOF, err)
		require.Equal(t, 10, n)
		p, err = server.Peek(1)
		require.Equal(t, io.EOF, err)
		require.Empty(t, p)
		require.NoError(t, client.Close())
	})
}

// A deadline ends the wait, Peek returns what has arrived, and nothing is lost. What has
// arrived is returned whatever the deadline.
func TestPeekAgainstADeadline(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		pattern(1).written(t, client, 0, 10)
		_, err := server.Peek(10)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, server.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
			p, err := server.Peek(11)
			requireTimeout(t, err)
			require.Len(t, p, 10)
			require.NoError(t, pattern(1).check(p, 0))
		}
		p, err := server.Peek(10)
		require.NoError(t, err)
		require.Len(t, p, 10)
		n, err := server.Discard(11)
		requireTimeout(t, err)
		require.Equal(t, 10, n)
		require.NoError(t, server.SetReadDeadline(time.Time{}))
		pattern(1).written(t, client, 10, 1)
		require.NoError(t, pattern(1).receiveExactly(server, 10, 1)) // and not the bytes for which Peek waited
	})
}

func TestCloseEndsPeek(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		pattern(1).written(t, client, 0, 10)
		held, err := server.Peek(10)
		require.NoError(t, err)
		peeked := started(func() error { _, err := server.Peek(11); return err })
		v.parked()
		require.NoError(t, server.CloseRead())
		require.Equal(t, io.EOF, <-peeked)
		_, err = server.Discard(10)
		require.Equal(t, io.EOF, err, "what is held may have changed")
		require.Len(t, held, 10)

		discarded := started(func() error { _, err := client.Discard(1); return err })
		v.parked()
		require.NoError(t, client.Close())
		require.ErrorIs(t, <-discarded, net.ErrClosed)
		_, err = client.Peek(1)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = client.Peek(0)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = client.Discard(0)
		require.ErrorIs(t, err, net.ErrClosed)
		require.Zero(t, client.Buffered())
	})
}

// Bytes that arrived before the link was lost can still be peeked at and discarded.
func TestPeekOfWhatArrivedBeforeTheLoss(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		pattern(1).written(t, client, 0, 10)
		_, err := server.Peek(10)
		require.NoError(t, err)
		require.NoError(t, client.SetLinger(0))
		require.NoError(t, client.Close())
		p, err := server.Peek(11)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Len(t, p, 10)
		require.NoError(t, pattern(1).check(p, 0))
		n, err := server.Discard(11)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Equal(t, 10, n)
	})
}

// A slice that is used too long may have any content, but reading it is no fault.
func TestPeekedBytesOutliveTheConnection(t *testing.T) {
	for name, venueOf := range map[string]func(t *testing.T) venue{"shm": shmVenue, "verbs": verbsVenue} {
		t.Run(name, func(t *testing.T) {
			v := venueOf(t)
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			for range 10 {
				client, server := v.connect(t, nil, nil)
				pattern(1).written(t, client, 0, 100_000)
				p, err := server.Peek(100_000)
				require.NoError(t, err)
				require.NoError(t, pattern(1).check(p, 0))
				atOnce(t, client.Close, server.Close)
				for there := true; there; {
					there = server.Link().Memory > 0 // the memory is given back in the background
					time.Sleep(time.Millisecond)
					for i := range p {
						p[i]++
					}
				}
			}
		})
	}
}

// Random peeks, discards and reads see each byte as it was sent, while rings grow and other
// goroutines write.
func TestPeekAtRandom(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for i, shape := range shapes {
			client, server := v.connect(t, shape.dialer, shape.listener)
			total := v.times(3 << 20)
			atOnce(t, func() error {
				if err := pattern(i).send(client, 0, total, 100_000, rand.New(rand.NewPCG(1, uint64(i)))); err != nil {
					return err
				}
				return client.CloseWrite()
			}, func() error {
				n, err := pattern(i).peek(server, 100_000, rand.New(rand.NewPCG(2, uint64(i))))
				if n != total || err != io.EOF {
					return fmt.Errorf("%s: received %d of %d bytes, then %v", shape.name, n, total, err)
				}
				return nil
			})
			requireRareCredits(t, server, shape.listener)
		}
	})
}

// peek is receive by Peek, and now and then by Read.
func (p pattern) peek(c *rconn.Conn, most int, r *rand.Rand) (total int, err error) {
	b := make([]byte, most)
	for {
		if r.IntN(4) == 0 {
			n, err := c.Read(b[:1+r.IntN(most)])
			if wrong := p.check(b[:n], total); wrong != nil {
				return total, wrong
			}
			if total += n; err != nil {
				return total, err
			}
			continue
		}
		want := 1 + r.IntN(1<<r.IntN(17))
		if n := c.Buffered(); n > 0 && r.IntN(2) == 0 {
			want = n
		}
		got, err := c.Peek(want)
		if wrong := p.check(got, total); wrong != nil {
			return total, wrong
		}
		switch {
		case err == nil && len(got) != want, err == bufio.ErrBufferFull && (len(got) == 0 || len(got) >= want):
			return total, fmt.Errorf("%d bytes of %d, with %v", len(got), want, err)
		case len(got) == 0:
			return total, err
		}
		n := 1 + r.IntN(len(got))
		if m, err := c.Discard(n); m != n || err != nil {
			return total, fmt.Errorf("discarded %d of %d bytes, then %v", m, n, err)
		}
		total += n
	}
}

// BenchmarkReceive is a stream of Writes to a peer that reads with copies and without, and
// drops what it reads, or looks at every byte once.
func BenchmarkReceive(b *testing.B) {
	read := func(c *rconn.Conn, see func(p []byte)) error {
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				return err
			}
			see(b[:n])
		}
	}
	peek := func(c *rconn.Conn, see func(p []byte)) error {
		for {
			if _, err := c.Peek(1); err != nil {
				return err
			}
			p, err := c.Peek(c.Buffered())
			if err != nil {
				return err
			}
			see(p)
			if _, err := c.Discard(len(p)); err != nil {
				return err
			}
		}
	}
	drop := func([]byte) {}
	sum := func(p []byte) { crc32.Update(0, crc32.MakeTable(crc32.Castagnoli), p) }
	benchEachFabric(b, func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn)) {
		for _, size := range []int{64 << 10, 1 << 20} {
			for _, way := range []struct {
				name    string
				receive func(c *rconn.Conn, see func(p []byte)) error
				see     func(p []byte)
			}{{"Read/drop", read, drop}, {"Peek/drop", peek, drop}, {"Read/crc", read, sum}, {"Peek/crc", peek, sum}} {
				b.Run(fmt.Sprintf("%d/%s", size, way.name), func(b *testing.B) {
					client, server := connect(b)
					p := make([]byte, size)
					done := started(func() error { return way.receive(server, way.see) })
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for b.Loop() {
						if _, err := client.Write(p); err != nil {
							b.Fatal(err)
						}
					}
					b.StopTimer()
					require.NoError(b, client.CloseWrite())
					require.Equal(b, io.EOF, <-done)
				})
			}
		}
	})
}
