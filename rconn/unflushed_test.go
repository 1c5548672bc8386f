package rconn_test

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// These devices accept the move to the error state, and then flush nothing of what is
// posted, as mlx5 does after an internal error, and as any device may whose completion
// queue has failed.

// unflushedTime bounds how long a connection waits for what it has posted.
const unflushedTime = 5 * time.Second

// unflushedCauses are the errors with which such a device fails, the errors that its users
// get, and how long after.
var unflushedCauses = []struct {
	name  string
	cause error
	errno syscall.Errno
	after time.Duration
}{
	{"device removed", fabric.ErrDeviceRemoved, syscall.ENETDOWN, 0},
	{"fatal queue pair error", fabric.ErrQueuePair, syscall.ECONNRESET, unflushedTime},
	{"disconnected", fabric.ErrDisconnected, syscall.ECONNRESET, unflushedTime},
}

// unflushedInVirtualTime runs a test for each cause, with a function that makes the device
// of a connection fail.
func unflushedInVirtualTime(t *testing.T, test func(t *testing.T, v simVenue, fail func(*rconn.Conn), errno syscall.Errno, after time.Duration)) {
	for _, u := range unflushedCauses {
		t.Run(u.name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				v.SetFaults(sim.Faults{Unflushed: func(*sim.Endpoint) bool { return true }})
				test(t, v, func(c *rconn.Conn) { v.endpoint(c).Fail(u.cause) }, u.errno, u.after)
			})
		})
	}
}

func TestDeviceThatFlushesNothingEndsPendingCalls(t *testing.T) {
	unflushedInVirtualTime(t, func(t *testing.T, v simVenue, fail func(*rconn.Conn), errno syscall.Errno, after time.Duration) {
		c, _ := v.connect(t, nil, tight)
		read := started(func() error { _, err := c.Read(make([]byte, 1)); return err })
		_, wrote := v.blockedWrite(c)
		start := time.Now()
		fail(c)
		require.ErrorIs(t, <-read, errno)
		require.ErrorIs(t, <-wrote, errno)
		require.Equal(t, after, time.Since(start))
		require.NoError(t, c.Close(), "there is nothing more to lose")
		require.Equal(t, after, time.Since(start))
	})
}

func TestDeviceThatFlushesNothingEndsClose(t *testing.T) {
	unflushedInVirtualTime(t, func(t *testing.T, v simVenue, fail func(*rconn.Conn), errno syscall.Errno, after time.Duration) {
		c, _ := v.connect(t, nil, nil)
		v.Cut(true)
		closed := started(c.Close)
		v.parked()
		start := time.Now()
		fail(c)
		require.ErrorIs(t, <-closed, errno)
		require.Equal(t, after, time.Since(start))
	})
}

func TestDeviceThatFlushesNothingLosesNothingDelivered(t *testing.T) {
	unflushedInVirtualTime(t, func(t *testing.T, v simVenue, fail func(*rconn.Conn), errno syscall.Errno, after time.Duration) {
		c, s := v.connect(t, nil, nil)
		_, err := s.Write([]byte("last words"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		start := time.Now()
		fail(c)
		got, err := io.ReadAll(c)
		require.Equal(t, "last words", string(got))
		require.ErrorIs(t, err, errno)
		require.Equal(t, after, time.Since(start))
	})
}

// Flushed completions tell that the queue pair has failed. The cause is another event's,
// which does not come.
func TestQueuePairThatFailsWithoutAReasonIsAReset(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, _ := v.connect(t, nil, nil)
		mine := v.endpoint(c)
		v.SetFaults(sim.Faults{
			Send: func(e *sim.Endpoint, _ *fabric.WorkRequest) fabric.Status {
				if e == mine {
					return fabric.Flushed
				}
				return fabric.OK
			},
			Lose: func(e *sim.Endpoint, m sim.Message) bool { return m == sim.DREQ },
		})
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		start := time.Now()
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.ErrorIs(t, err, fabric.ErrQueuePair)
		require.Equal(t, 2*wan.Latency+unflushedTime, time.Since(start))
	})
}
