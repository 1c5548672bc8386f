package rconn_test

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/direct"
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

// The failed work request is noticed before the failure of the device.
func TestDeviceThatFlushesNothingAndIsThenRemoved(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, _ := v.connect(t, nil, nil)
		v.SetFaults(sim.Faults{
			Unflushed: func(*sim.Endpoint) bool { return true },
			PostSend:  func(*sim.Endpoint, []fabric.WorkRequest) error { return syscall.EIO },
		})
		_, err := c.Write([]byte("x"))
		require.NoError(t, err, "it was accepted")
		time.AfterFunc(time.Second, v.RemoveDevice)
		start := time.Now()
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ENETDOWN)
		require.Equal(t, time.Second, time.Since(start))
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

// Fabrics other than sim have no virtual time: all cases there wait for the same seconds.
func TestDeviceThatFlushesNothingOnEveryFabric(t *testing.T) {
	for name, venueOf := range map[string]func(*testing.T) venue{
		"direct": func(*testing.T) venue { return venue{Fabric: make(directFabric, 1), addr: simAddr} },
		"shm":    shmVenue,
		"verbs":  verbsVenue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := venueOf(t)
			var ended []func()
			for _, u := range unflushedCauses {
				f := unflushedFabric{v.Fabric, make(chan *unflushed, 2)}
				ended = append(ended, requireUnflushed(t, venue{Fabric: f, addr: v.addr}, f.dialed, u.cause, u.errno))
			}
			for _, require := range ended {
				require()
			}
		})
	}
}

// requireUnflushed makes the devices of two connections fail, and returns a function that
// waits for these to end as they should.
func requireUnflushed(t *testing.T, v venue, dialed <-chan *unflushed, cause error, errno syscall.Errno) func() {
	t.Helper()
	pending, _ := v.connect(t, nil, tight)
	unread, peer := v.connect(t, nil, nil)
	read := started(func() error { _, err := pending.Read(make([]byte, 1)); return err })
	_, wrote := v.blockedWrite(pending)
	// When the first byte has arrived, all have.
	_, err := peer.Write([]byte("last words"))
	require.NoError(t, err)
	_, err = unread.Read(make([]byte, 1))
	require.NoError(t, err)

	devices := []*unflushed{<-dialed, <-dialed}
	for _, d := range devices {
		d.fail(cause)
	}
	return func() {
		require.ErrorIs(t, <-read, errno)
		require.ErrorIs(t, <-wrote, errno)
		require.NoError(t, pending.Close())
		got, err := io.ReadAll(unread)
		require.Equal(t, "ast words", string(got))
		require.ErrorIs(t, err, errno)
		require.NoError(t, unread.Close())
		for _, d := range devices {
			<-d.closed
		}
	}
}

// unflushedFabric dials endpoints of devices that flush nothing.
type unflushedFabric struct {
	fabric.Fabric
	dialed chan *unflushed
}

func (f unflushedFabric) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	u := &unflushed{Endpoint: ep, failure: make(chan error, 1), closed: make(chan struct{})}
	f.dialed <- u
	return u, nil
}

// unflushed is an endpoint of such a device.
type unflushed struct {
	fabric.Endpoint
	failure chan error
	closed  chan struct{}
}

// fail makes Wait return why, and the endpoint flush nothing from now on.
func (e *unflushed) fail(why error) {
	e.failure <- why
	e.Wake()
}

func (e *unflushed) failed() error {
	select {
	case err := <-e.failure:
		return err
	default:
		return nil
	}
}

func (e *unflushed) Wait() error {
	if err := e.failed(); err != nil {
		return err
	}
	if err := e.Endpoint.Wait(); err != nil {
		return err
	}
	return e.failed()
}

func (e *unflushed) Poll(c []fabric.Completion) (int, error) {
	n, err := e.Endpoint.Poll(c)
	c = slices.DeleteFunc(c[:n], func(wc fabric.Completion) bool { return wc.Status == fabric.Flushed })
	return len(c), err
}

func (e *unflushed) Close() error {
	defer close(e.closed)
	return e.Endpoint.Close()
}

// directFabric makes pairs of endpoints that are connected to each other. The channel has
// the listening ends.
type directFabric chan fabric.Endpoint

func (f directFabric) Dial(context.Context, netip.AddrPort, netip.AddrPort) (fabric.Endpoint, error) {
	dialing, listening := direct.Pair()
	f <- listening
	return dialing, nil
}

func (f directFabric) Listen(netip.AddrPort, int) (fabric.Listener, error) { return f, nil }

func (f directFabric) Accept() (fabric.Endpoint, error) { return <-f, nil }
func (f directFabric) Addr() netip.AddrPort             { return netip.AddrPort{} }
func (f directFabric) Close() error                     { return nil }
