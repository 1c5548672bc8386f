package rconn_test

import (
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/rconntest"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/rconn"
)

// Peers, links and devices fail, in virtual time.

// ackLimit is the time in which a device repeats a message before it gives the peer up.
const ackLimit = link.DefaultAckTimeout * (link.DefaultRetries + 1)

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

// Each end's device repeats what is lost as that end's Config says.
func TestAckTimeoutAndRetriesDecideWhenALostPathIsNoticed(t *testing.T) {
	cfg := &rconntest.Config{AckTimeout: 64 * time.Millisecond, Retries: 7, ResumeTimeout: -1}
	for name, configs := range map[string]struct {
		c, s   *rconntest.Config
		within time.Duration
	}{
		"those of this end":   {cfg, nil, 8 * cfg.AckTimeout},
		"not those of a peer": {nil, cfg, ackLimit},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				c, _ := v.connect(t, configs.c, configs.s)
				v.Cut(true)
				since := time.Now()
				write(t, c, "lost")
				_, err := c.Read(make([]byte, 1))
				requireDead(t, err)
				require.Equal(t, configs.within, time.Since(since))
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

// What the peer has sent can be read. Then it depends on whether it had ended its stream.
func TestPeerThatIsKilled(t *testing.T) {
	for _, link := range []sim.Link{{}, wan} {
		for _, ended := range []bool{false, true} {
			inVirtualTime(t, link, func(t *testing.T, v simVenue) {
				c, s := v.connect(t, nil, nil)
				write(t, s, "last words")
				reads, writes := error(syscall.ECONNRESET), syscall.ECONNRESET
				if ended {
					require.NoError(t, s.CloseWrite())
					reads, writes = nil, syscall.EPIPE // io.EOF
				}
				time.Sleep(time.Second)
				v.endpoint(s).Kill()
				killed := time.Now()
				got, err := io.ReadAll(c)
				require.Equal(t, "last words", string(got))
				require.ErrorIs(t, err, reads)
				require.LessOrEqual(t, time.Since(killed), link.Latency)
				time.Sleep(time.Second)
				_, err = c.Write([]byte("x"))
				require.ErrorIs(t, err, writes)
				require.NoError(t, c.Close())
			})
		}
	}
}

func TestPortThatGoesDownIsProbed(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, _ := v.connect(t, &rconntest.Config{KeepAlive: -1}, &rconntest.Config{KeepAlive: -1})
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

func TestConnectionWhoseHardwareAddressChangesIsProbedAtOnce(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, _ := v.connect(t, &rconntest.Config{KeepAlive: -1}, &rconntest.Config{KeepAlive: -1})
		for n := range int64(2) {
			v.endpoint(c).Fail(fabric.ErrAddressChanged)
			synctest.Wait()
			require.EqualValues(t, n+1, c.Link().Probes)
			time.Sleep(time.Minute)
			require.EqualValues(t, n+1, c.Link().Probes)
		}
	})
}

// Close waits for the peer's device to have all, for the linger time at most: no longer than a device
// repeats a message, by default. It does not wait for the peer's process, which may have closed its half, and
// whose answer has a time limit of its own.
func TestCloseWaitsForThePeersDeviceAndNoLongerThanItMay(t *testing.T) {
	for name, tt := range map[string]struct {
		linger int // in seconds; -1: the default
		lose   func(t *testing.T, v simVenue, c, s *rconn.Conn)
		err    error
		after  time.Duration
	}{
		"the linger time is over": {2, func(t *testing.T, v simVenue, c, _ *rconn.Conn) {
			write(t, c, "lost")
			v.Cut(true)
		}, syscall.ETIMEDOUT, 2 * time.Second},
		"the device gives up": {-1, func(t *testing.T, v simVenue, c, _ *rconn.Conn) {
			write(t, c, "lost")
			v.Cut(true)
		}, syscall.ETIMEDOUT, ackLimit},
		"the peer has closed its half": {2, func(t *testing.T, v simVenue, c, s *rconn.Conn) {
			require.NoError(t, s.CloseWrite())
			_, err := c.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			write(t, c, "lost")
			v.Cut(true)
		}, syscall.ETIMEDOUT, 2 * time.Second},
		"there is no linger time": {0, func(_ *testing.T, v simVenue, c, _ *rconn.Conn) {
			v.endpoint(c).HoldReceives(true)
			v.Cut(true)
		}, nil, 0},
		"the peer's process is silent": {-1, func(_ *testing.T, v simVenue, _, s *rconn.Conn) {
			v.endpoint(s).HoldReceives(true)
		}, nil, 2 * wan.Latency},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				c, s := v.connect(t, nil, nil)
				tt.lose(t, v, c, s)
				if tt.linger >= 0 {
					require.NoError(t, c.SetLinger(tt.linger))
				}
				start := time.Now()
				err := c.Close()
				require.ErrorIs(t, err, tt.err)
				if err != nil {
					require.IsType(t, (*net.OpError)(nil), err)
				}
				require.Equal(t, tt.after, time.Since(start))
				time.Sleep(6 * time.Second)
				require.Nil(t, v.endpoint(c), "torn down all the same")
			})
		})
	}
}

func TestKeepAliveProbesAnIdleConnection(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, &rconntest.Config{KeepAlive: time.Second}, &rconntest.Config{KeepAlive: -1})
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

// A queue pair that has failed ends all calls that wait. A device may accept the move to the error state, and
// then flush nothing of what is posted, as mlx5 does after an internal error, and any may whose completion
// queue has failed.
func TestFailureEndsPendingCalls(t *testing.T) {
	const unflushed = 5 * time.Second // for which a connection waits for what it has posted
	for cause, want := range map[error]struct {
		errno syscall.Errno
		after time.Duration // if nothing is flushed
	}{
		fabric.ErrDeviceRemoved: {syscall.ENETDOWN, 0},
		fabric.ErrQueuePair:     {syscall.ECONNRESET, unflushed},
		fabric.ErrDisconnected:  {syscall.ECONNRESET, unflushed},
	} {
		for _, flushes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, flushes %t", cause, flushes), func(t *testing.T) {
				inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
					v.SetFaults(sim.Faults{Unflushed: func(*sim.Endpoint) bool { return !flushes }})
					c, s := v.connect(t, nil, tight)
					read := started(func() error { _, err := c.Read(make([]byte, 1)); return err })
					_, wrote := v.blockedWrite(c)
					write(t, s, "x")
					closed := started(s.Close)
					v.parked()
					start, after := time.Now(), want.after
					if flushes {
						after = 0
					}
					if cause == fabric.ErrDeviceRemoved {
						v.RemoveDevice()
					} else {
						v.endpoint(c).Fail(cause)
					}
					require.ErrorIs(t, <-read, want.errno)
					require.ErrorIs(t, <-wrote, want.errno)
					require.Equal(t, after, time.Since(start))
					require.NoError(t, c.Close(), "there is nothing more to lose")
					require.Equal(t, after, time.Since(start))
					<-closed
				})
			})
		}
	}
}
