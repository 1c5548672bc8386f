package rconn_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/ringnet/ringnet/internal/testing/rconntest"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/rconn"
)

// tight is the smallest configuration.
var tight = &rconntest.Config{RecvBuffer: 4 << 10, SendBuffer: 4 << 10, SendQueue: 16, RecvQueue: 4}

// shapes are pairs of configurations: alike and not, tight and roomy.
var shapes = []struct {
	name             string
	dialer, listener *rconntest.Config
}{
	{"default", nil, nil},
	{"tight", tight, tight},
	{"tight dialer", tight, nil},
	{"tight listener", nil, tight},
	{"tight staging", &rconntest.Config{SendBuffer: 4 << 10}, &rconntest.Config{SendBuffer: 4 << 10, RecvBuffer: 1 << 20}},
	{"few receives", &rconntest.Config{RecvQueue: 4}, &rconntest.Config{RecvQueue: 8, SendQueue: 16}},
	{"long queues", &rconntest.Config{RecvBuffer: 4 << 10, RecvQueue: 1024}, &rconntest.Config{RecvBuffer: 8 << 10, SendQueue: 512}},
}

func TestCloseDelivers(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for i := range v.times(100) {
			r := random(t, uint64(i))
			shape := shapes[i%len(shapes)]
			total, most := 1+r.IntN(1<<(6+r.IntN(13))), 1+r.IntN(32<<10)
			client, server := v.connect(t, shape.dialer, shape.listener)
			from, to := client, server
			if i%2 == 1 {
				from, to = to, from
			}
			pattern(i).transfer(t, from, to, total, most, from.Close)
			require.NoError(t, to.Close())
			requireRareCredits(t, client, shape.dialer)
			requireRareCredits(t, server, shape.listener)
		}
	})
}

// requireRareCredits requires that an end has sent no more credits than the protocol
// allows: CREDITs ≤ 4·messages/D + 4·bytes/R.
func requireRareCredits(t *testing.T, c *rconn.Conn, cfg *rconntest.Config) {
	t.Helper()
	_, ring := cfg.RingMemory() // a link with one connection has its whole ring from the first message on
	receives := 256
	if cfg != nil && cfg.RecvQueue != 0 {
		receives = cfg.RecvQueue
	}
	s := c.Stats()
	most := 4*float64(s.MessagesReceived)/float64(receives) + 4*float64(s.BytesReceived)/float64(ring)
	require.LessOrEqual(t, float64(s.CreditsSent), most, "CREDITs for %d messages, %d bytes", s.MessagesReceived, s.BytesReceived)
}

func TestCloseWriteWakesWrite(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, tight)
		accepted, fail := v.blockedWrite(c)
		require.NoError(t, c.CloseWrite())
		require.ErrorIs(t, <-fail, syscall.EPIPE)
		require.NoError(t, pattern(0).receiveExactly(s, 0, <-accepted))
		_, err := s.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

// blockedWrite fills the peer's ring with pattern 0 and goes on until an error ends the
// Write. Then it sends how many bytes were accepted, and the error.
func (v venue) blockedWrite(c net.Conn) (accepted <-chan int, fail <-chan error) {
	n, err := make(chan int, 1), make(chan error, 1)
	b := make([]byte, 1<<20)
	pattern(0).fill(b, 0)
	first := make(chan struct{})
	go func() {
		// When one byte is accepted, the rest follows within this Write.
		a, e := c.Write(b[:1])
		close(first)
		if e == nil {
			a, e = c.Write(b[1:])
			a++
		}
		n <- a
		err <- e
	}()
	<-first
	v.parked()
	return n, err
}

func TestCloseReadStallsNeitherDirection(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for _, shape := range shapes {
			c, s := v.connect(t, shape.dialer, shape.listener)
			write(t, c, "nobody reads this")
			require.NoError(t, s.CloseRead())
			require.NoError(t, s.CloseRead(), "twice")
			require.NoError(t, pattern(0).send(c, 0, 1<<20, 64<<10, random(t, 1)))
			pattern(7).transfer(t, s, c, 100_000, 5000, s.CloseWrite)
			require.NoError(t, c.Close(), "FIN is taken all the same")

			_, err := s.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.NoError(t, s.Close())
		}
	})
}

func TestCloseWithUnreadDataResetsBehindWhatWasWritten(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for _, shape := range shapes {
			c, s := v.connect(t, shape.dialer, shape.listener)
			write(t, c, "this is never read")
			_, err := io.ReadFull(s, make([]byte, 4)) // now the rest has arrived, too
			require.NoError(t, err)
			require.NoError(t, pattern(0).send(s, 0, 4000, 500, random(t, 1)))
			require.NoError(t, s.Close())

			n, err := pattern(0).receive(c, 0, 1000, random(t, 1))
			require.Equal(t, 4000, n, shape.name)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = c.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, c.Close())
		}
	})
}

// The peer's FIN has been answered already: all that is left to send is the RESET.
func TestCloseWithUnreadDataAfterCloseWriteResets(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		require.NoError(t, s.CloseWrite())
		_, err := c.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		write(t, c, "this is never read")
		_, err = io.ReadFull(s, make([]byte, 4))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.ErrorIs(t, writeUntilError(c), syscall.ECONNRESET)
		require.NoError(t, c.Close())
	})
}

// writeUntilError writes until that fails.
func writeUntilError(c net.Conn) error {
	for {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
	}
}

func TestLingerZeroDiscards(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		write(t, c, "perhaps")
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
		_, err := io.ReadAll(s)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.ErrorIs(t, writeUntilError(s), syscall.ECONNRESET)
		require.NoError(t, s.Close())
	})
}

func TestWriteAfterThePeerHasClosedIsEPIPE(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, tight, tight)
		require.NoError(t, s.Close())
		require.ErrorIs(t, writeUntilError(c), syscall.EPIPE)
		_, err := c.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, c.Close(), "the peer was faster, which is no error")
	})
}

func TestCloseOfBothEndsAtOnce(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for range v.times(50) {
			c, s := v.connect(t, tight, tight)
			atOnce(t, c.Close, s.Close)
		}
		for range v.times(50) { // with data that neither reads
			c, s := v.connect(t, tight, tight)
			closeAfterWrite := func(c *rconn.Conn) func() error {
				return func() error {
					if _, err := c.Write([]byte("unread")); err != nil {
						return nil // the other end has closed first
					}
					return c.Close()
				}
			}
			atOnce(t, closeAfterWrite(c), closeAfterWrite(s))
		}
	})
}

func TestClosedConnectionFailsEveryCallWithErrClosed(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, _ := v.connect(t, nil, nil)
		require.NoError(t, c.SetDeadline(time.Now().Add(-time.Second)))
		require.NoError(t, c.Close())
		for name, op := range map[string]func() error{
			"Read":             func() error { _, err := c.Read(make([]byte, 1)); return err },
			"Read of nothing":  func() error { _, err := c.Read(nil); return err },
			"Write":            func() error { _, err := c.Write(make([]byte, 1)); return err },
			"Write of nothing": func() error { _, err := c.Write(nil); return err },
			"Close":            c.Close,
			"CloseRead":        c.CloseRead,
			"CloseWrite":       c.CloseWrite,
			"SetLinger":        func() error { return c.SetLinger(1) },
			"SetDeadline":      func() error { return c.SetDeadline(time.Time{}) },
			"SetReadDeadline":  func() error { return c.SetReadDeadline(time.Now()) },
			"SetWriteDeadline": func() error { return c.SetWriteDeadline(time.Now()) },
		} {
			err := op()
			require.ErrorIs(t, err, net.ErrClosed, name)
			require.IsType(t, (*net.OpError)(nil), err, name)
		}
		c.Stats()
	})
}

func TestConcurrentReadsLoseNothing(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, tight, tight)
		total := v.times(500_000)
		counts := make([]int, 8)
		readers := []func() error{func() error {
			if err := pattern(0).send(client, 0, total, 9000, rand.New(rand.NewPCG(0, 0))); err != nil {
				return err
			}
			return client.Close()
		}}
		for i := range counts {
			readers = append(readers, func() error {
				n, err := io.Copy(io.Discard, struct{ io.Reader }{server})
				counts[i] = int(n)
				return err
			})
		}
		atOnce(t, readers...)
		for _, n := range counts {
			total -= n
		}
		require.Zero(t, total)
	})
}

// Two goroutines that only a message over the connection orders are no data race: run with
// -race.
func TestMessagesOrderMemory(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		client, server := v.connect(t, nil, nil)
		shared := 0
		atOnce(t, func() error {
			for i := range 100 {
				shared = i
				if _, err := client.Write([]byte{1}); err != nil {
					return err
				}
				if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
					return err
				}
			}
			return nil
		}, func() error {
			for i := range 100 {
				if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
					return err
				}
				if shared != i {
					return fmt.Errorf("saw %d, want %d", shared, i)
				}
				shared = -1
				if _, err := server.Write([]byte{1}); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestNettest(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		nettest.TestConn(t, v.pipe(t))
	})
}

// What waits for a place in a queue, and what passes it.

// If a peer reads nothing, data waits and control messages do not: FIN, FINACK and credits
// go both ways past the data.
func TestControlMessagesPassBlockedData(t *testing.T) {
	for _, link := range []sim.Link{{}, wan, far} {
		inVirtualTime(t, link, func(t *testing.T, v simVenue) {
			c, s := v.connect(t, tight, tight)
			_, wrote := v.blockedWrite(c)                             // fills the ring of s, which does not read
			pattern(5).transfer(t, s, c, 300_000, 3000, s.CloseWrite) // for whose data c sends credits
			require.NoError(t, c.Close(), "FIN goes past them too")
			require.Error(t, <-wrote)
		})
	}
}

// Small Writes leave at once, as with TCP_NODELAY, until the send queue is full. The others leave
// together when those have arrived.
func TestWriteHeldBackGoesWhenTheQueueIsIdle(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		read := func(n int) time.Duration {
			start := time.Now()
			_, err := io.ReadFull(s, make([]byte, n))
			require.NoError(t, err)
			return time.Since(start)
		}
		write := func(n int) {
			for range n {
				write(t, c, "x")
			}
		}
		write(10)
		require.Less(t, read(10), 2*wan.Latency, "they have waited for nothing")
		write(1000)
		require.LessOrEqual(t, read(1000), 4*wan.Latency)
		require.LessOrEqual(t, c.Stats().MessagesSent, uint64(10+128+1), "the rest of many small Writes is one message")
	})
}

// Writes for which the peer has no receive leave together when it has one.
func TestWritesWaitTogetherForAReceive(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, &rconntest.Config{RecvQueue: 8})
		v.endpoint(s).HoldReceives(true)
		for range 100 {
			write(t, c, "x")
		}
		require.EqualValues(t, 8, c.Stats().MessagesSent, "each at once")
		v.endpoint(s).HoldReceives(false)
		_, err := io.ReadFull(s, make([]byte, 100))
		require.NoError(t, err)
		require.EqualValues(t, 9, c.Stats().MessagesSent)
	})
}
