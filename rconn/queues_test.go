package rconn_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// What waits for a place in a queue, and what passes it.

// If a peer reads nothing, data waits and control messages do not: FIN, FINACK and credits
// go both ways past the data.
func TestControlMessagesPassBlockedData(t *testing.T) {
	for _, link := range []sim.Link{{}, wan, far} {
		inVirtualTime(t, link, func(t *testing.T, v simVenue) {
			c, s := v.connect(t, tight, tight)
			_, wrote := v.blockedWrite(c) // fills the ring of s, which does not read
			atOnce(t, func() error {      // while data of s arrives, for which c sends credits
				if err := pattern(5).send(s, 0, 300_000, 3000, rand.New(rand.NewPCG(1, 1))); err != nil {
					return err
				}
				return s.CloseWrite()
			}, func() error {
				n, err := pattern(5).receive(c, 0, 3000, rand.New(rand.NewPCG(2, 2)))
				if n != 300_000 || err != io.EOF {
					return fmt.Errorf("received %d bytes, then %v", n, err)
				}
				return nil
			})
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
				_, err := c.Write([]byte("x"))
				require.NoError(t, err)
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
		c, s := v.connect(t, nil, &rconn.Config{RecvQueue: 8})
		v.endpoint(s).HoldReceives(true)
		for range 100 {
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
		}
		require.EqualValues(t, 8, c.Stats().MessagesSent, "each at once")
		v.endpoint(s).HoldReceives(false)
		_, err := io.ReadFull(s, make([]byte, 100))
		require.NoError(t, err)
		require.EqualValues(t, 9, c.Stats().MessagesSent)
	})
}
