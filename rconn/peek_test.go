package rconn_test

import (
	"bufio"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/sim"
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
		for _, discards := range [][]int{{0}, {100}, {3000}, {3500, 600}} { // the last are not worth a CREDIT
			client, server := v.connect(t, tight, tight)
			const total = 20_000
			sent := started(func() error {
				return pattern(1).send(client, 0, total, total, rand.New(rand.NewPCG(1, 1)))
			})
			first := 0
			for _, n := range discards {
				v.parked()
				_, err := server.Discard(n)
				require.NoError(t, err)
				first += n
			}
			p, err := server.Peek(1 << 30)
			require.Equal(t, bufio.ErrBufferFull, err)
			require.NotEmpty(t, p)
			require.NoError(t, pattern(1).check(p, first))
			require.NoError(t, pattern(1).receiveExactly(server, first, total-first))
			require.NoError(t, <-sent)
		}
	})
}

// What ends the wait for more leaves what there is: Peek returns it with the reason, and without one
// if it is enough. Nothing is lost.
func TestPeekOfMoreThanComes(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for want, end := range map[error]func(client, server *rconn.Conn) error{
			io.EOF: func(client, _ *rconn.Conn) error { return client.CloseWrite() },
			os.ErrDeadlineExceeded: func(_, server *rconn.Conn) error {
				return server.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			},
		} {
			client, server := v.connect(t, nil, nil)
			pattern(1).written(t, client, 0, 10)
			_, err := server.Peek(10)
			require.NoError(t, err)
			require.NoError(t, end(client, server))
			for range 2 {
				p, err := server.Peek(11)
				require.ErrorIs(t, err, want)
				require.Len(t, p, 10)
				require.NoError(t, pattern(1).check(p, 0))
			}
			p, err := server.Peek(10)
			require.NoError(t, err)
			require.Len(t, p, 10)
			n, err := server.Discard(11)
			require.ErrorIs(t, err, want)
			require.Equal(t, 10, n)
			p, err = server.Peek(1)
			require.ErrorIs(t, err, want)
			require.Empty(t, p)
			if want != io.EOF {
				require.NoError(t, server.SetReadDeadline(time.Time{}))
				pattern(1).written(t, client, 10, 1)
				require.NoError(t, pattern(1).receiveExactly(server, 10, 1)) // and not the bytes for which Peek waited
			}
		}
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

// A slice that is used too long may have any content, but reading it is no fault.
func TestPeekedBytesOutliveTheConnection(t *testing.T) {
	for name, venueOf := range map[string]func(testing.TB) venue{"shm": shmVenue, "verbs": verbsVenue} {
		t.Run(name, func(t *testing.T) {
			v := venueOf(t)
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			for range 10 {
				client, server := v.connect(t, nil, nil)
				pattern(1).written(t, client, 0, 100_000)
				p, err := server.Peek(100_000)
				require.NoError(t, err)
				require.NoError(t, pattern(1).check(p, 0))
				atOnce(t, func() error { _ = client.Close(); return nil }, server.Close) // the server may be first
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

// The peer can write to the ring at any time. What has been read is no longer there, and
// neither is what io.Copy hands to a writer.
func TestPeerCannotChangeWhatHasBeenRead(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		client, server := v.connect(t, nil, nil)
		pattern(1).written(t, client, 0, 100)
		inTheRing, err := server.Peek(100)
		require.NoError(t, err)
		peersWrite := func() { pattern(2).fill(inTheRing, 0) }
		enough := errors.New("enough")
		_, err = io.Copy(writerFunc(func(p []byte) (int, error) {
			peersWrite()
			require.Len(t, p, 100)
			require.NoError(t, pattern(1).check(p, 0))
			return len(p), enough
		}), server)
		require.ErrorIs(t, err, enough)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
