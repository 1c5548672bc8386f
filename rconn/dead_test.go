package rconn_test

import (
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// Peers, links and devices fail, in virtual time.

// ackLimit is the time in which a device repeats a message before it gives the peer up.
const ackLimit = link.AckTimeout * (link.Retries + 1)

// wan has a latency, so that messages are under way for a while, and no jitter.
var wan = sim.Link{Latency: 5 * time.Millisecond}

func TestCutLinkIsNoticedWhileIdle(t *testing.T) {
	const keepAlive = 10 * time.Second // the default
	for _, idle := range []time.Duration{0, time.Millisecond, keepAlive / 2, keepAlive - 1, keepAlive, 3*keepAlive + 1, 10*keepAlive - 1} {
		t.Run(idle.String(), func(t *testing.T) {
			inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
				c, s := v.connect(t, nil, nil)
				// Something arrives just before the link is cut.
				time.Sleep(idle)
				write(t, s, "x")
				_, err := c.Read(make([]byte, 1))
				require.NoError(t, err)
				v.Cut(true)
				since := time.Now()

				read := started(func() error { _, err := s.Read(make([]byte, 1)); return err })
				_, err = c.Read(make([]byte, 1))
				requireDead(t, err)
				require.LessOrEqual(t, time.Since(since), keepAlive+ackLimit)
				requireDead(t, <-read)
				require.LessOrEqual(t, time.Since(since), keepAlive+ackLimit)
				_, err = c.Write([]byte("x"))
				requireDead(t, err)
				require.NoError(t, c.Close(), "there is nothing more to lose")
			})
		})
	}
}

func requireDead(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.ErrorContains(t, err, "transport retries exceeded")
	require.IsType(t, (*net.OpError)(nil), err)
	require.True(t, err.(net.Error).Timeout(), "as ETIMEDOUT is in package net")
}

func TestCutLinkIsNoticedWhileWriting(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		go io.Copy(io.Discard, struct{ io.Reader }{s})
		var cut time.Time
		time.AfterFunc(time.Second, func() { cut = time.Now(); v.Cut(true) })
		for {
			if _, err := c.Write(make([]byte, 100_000)); err != nil {
				requireDead(t, err)
				break
			}
		}
		require.LessOrEqual(t, time.Since(cut), ackLimit)
	})
}

func TestPeerKilledBeforeFINIsAReset(t *testing.T) {
	for _, link := range []sim.Link{{}, wan} {
		inVirtualTime(t, link, func(t *testing.T, v simVenue) {
			c, s := v.connect(t, nil, nil)
			write(t, s, "last words")
			time.Sleep(time.Second)
			v.endpoint(s).Kill()
			killed := time.Now()
			got, err := io.ReadAll(c)
			require.Equal(t, "last words", string(got))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.LessOrEqual(t, time.Since(killed), link.Latency)
			_, err = c.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, c.Close())
		})
	}
}

func TestPeerKilledAfterFINIsAnEOF(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		write(t, s, "last words")
		require.NoError(t, s.CloseWrite())
		time.Sleep(time.Second)
		v.endpoint(s).Kill()
		time.Sleep(time.Second)
		got, err := io.ReadAll(c)
		require.NoError(t, err)
		require.Equal(t, "last words", string(got))
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
	})
}

func TestDeviceRemovedWakesEveryCall(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, tight)
		read := started(func() error { _, err := c.Read(make([]byte, 1)); return err })
		_, wrote := v.blockedWrite(c)
		write(t, s, "x")
		closed := started(s.Close)
		v.parked()
		v.RemoveDevice()
		for _, err := range []error{<-read, <-wrote} {
			require.ErrorIs(t, err, fabric.ErrDeviceRemoved)
			require.ErrorIs(t, err, syscall.ENETDOWN)
		}
		<-closed
		require.NoError(t, c.Close())
	})
}

func TestPortThatGoesDownIsProbed(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, _ := v.connect(t, &rconn.Config{KeepAlive: -1}, &rconn.Config{KeepAlive: -1})
		v.PortDown() // the port is up again, and nothing was lost
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, c.Link().Probes)

		v.Cut(true)
		v.PortDown()
		down := time.Now()
		_, err := c.Read(make([]byte, 1))
		requireDead(t, err)
		require.Equal(t, 2*time.Second+ackLimit, time.Since(down))
	})
}

func TestCloseGivesUpAtTheLingerTime(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		write(t, c, "lost")
		v.Cut(true)
		require.NoError(t, c.SetLinger(2))
		start := time.Now()
		err := c.Close()
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.IsType(t, (*net.OpError)(nil), err)
		require.Equal(t, 2*time.Second, time.Since(start))

		// The default is longer than a device repeats a message.
		start = time.Now()
		requireDead(t, s.Close())
		require.Equal(t, ackLimit, time.Since(start))
	})
}

// A peer that has closed only its half still waits for bytes. Close must not report them as
// delivered.
func TestCloseGivesUpOnAPeerThatHasClosedItsHalf(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		require.NoError(t, s.CloseWrite())
		_, err := c.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		write(t, c, "lost")
		v.Cut(true)
		require.NoError(t, c.SetLinger(2))
		require.ErrorIs(t, c.Close(), syscall.ETIMEDOUT)
	})
}

// Close waits for the peer's device only. What the peer's process must still send has a
// time limit of its own.
func TestCloseDoesNotWaitForTheAnswerToFIN(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		v.endpoint(s).HoldReceives(true) // s sees nothing of what arrives
		start := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, 2*wan.Latency, time.Since(start))
		time.Sleep(6 * time.Second)
		require.Nil(t, v.endpoint(c), "torn down all the same")
		v.endpoint(s).HoldReceives(false)
		_, err := s.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

func TestLingerZeroDoesNotWait(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, _ := v.connect(t, nil, nil)
		v.endpoint(c).HoldReceives(true)
		v.Cut(true)
		require.NoError(t, c.SetLinger(0))
		start := time.Now()
		require.NoError(t, c.Close())
		require.Zero(t, time.Since(start))
		time.Sleep(6 * time.Second)
		require.Nil(t, v.endpoint(c))
	})
}

func TestKeepAliveProbesAnIdleConnection(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, &rconn.Config{KeepAlive: time.Second}, &rconn.Config{KeepAlive: -1})
		time.Sleep(time.Minute + time.Millisecond)
		require.InDelta(t, 60, c.Link().Probes, 1, "one a second")
		require.Zero(t, s.Link().Probes, "keepalive is off")

		// A connection on which the peer sends is not probed.
		before := c.Link().Probes
		for range 100 {
			time.Sleep(400 * time.Millisecond)
			write(t, s, "x")
			_, err := c.Read(make([]byte, 1))
			require.NoError(t, err)
		}
		require.Equal(t, before, c.Link().Probes)
	})
}

// A device that neither sends nor reports an error is given up, too.
func TestDeviceThatNeverCompletesIsGivenUp(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		var silent atomic.Bool
		v.Fabric = &hooked{v.Fabric, func(_ bool, name string, call func() error) error {
			if name == "PostSend" && silent.Load() {
				return nil
			}
			return call()
		}}
		c, _ := v.connect(t, nil, nil)
		silent.Store(true)
		start := time.Now()
		_, err := c.Write(make([]byte, 4<<20))
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Less(t, time.Since(start), time.Minute)
	})
}

// A device may accept the move to the error state, and then flush nothing of what is posted, as mlx5 does
// after an internal error, and any may whose completion queue has failed.
func TestDeviceThatFlushesNothingEndsPendingCalls(t *testing.T) {
	const unflushed = 5 * time.Second // for which a connection waits for what it has posted
	for cause, want := range map[error]struct {
		errno syscall.Errno
		after time.Duration
	}{
		fabric.ErrDeviceRemoved: {syscall.ENETDOWN, 0},
		fabric.ErrQueuePair:     {syscall.ECONNRESET, unflushed},
		fabric.ErrDisconnected:  {syscall.ECONNRESET, unflushed},
	} {
		t.Run(cause.Error(), func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				v.SetFaults(sim.Faults{Unflushed: func(*sim.Endpoint) bool { return true }})
				c, _ := v.connect(t, nil, tight)
				read := started(func() error { _, err := c.Read(make([]byte, 1)); return err })
				_, wrote := v.blockedWrite(c)
				start := time.Now()
				v.endpoint(c).Fail(cause)
				require.ErrorIs(t, <-read, want.errno)
				require.ErrorIs(t, <-wrote, want.errno)
				require.Equal(t, want.after, time.Since(start))
				require.NoError(t, c.Close(), "there is nothing more to lose")
				require.Equal(t, want.after, time.Since(start))
			})
		})
	}
}
