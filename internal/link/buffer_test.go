package link

import (
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// The device goes while it registers a buffer, which the call sees before the link does. Another takes its
// place, as for a Write.
func TestNewBufferOutlivesTheDeviceThatRegistersIt(t *testing.T) {
	onTwoCards(t, func(t *testing.T, n *sim.Network, c, s *Stream) {
		removedAtRegister(n, endpointOf(c.link))
		b, err := c.NewBuffer(4096)
		require.NoError(t, err)
		require.EqualValues(t, 1, c.link.Info().Moves)
		copy(b.Bytes(), "sent")
		_, err = c.WriteBuffer(b, 0, 4, unlimited())
		require.NoError(t, err)
		got := make([]byte, 4)
		_, err = s.Read(got, unlimited())
		require.NoError(t, err)
		require.Equal(t, "sent", string(got))
		b.Close()
	})
}

// So it is for the ring of a stream that is dialed.
func TestOpenOutlivesTheDeviceThatRegistersItsRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		active, passive, dialer := twoCards(n)
		c, s, b := connectLink(t, dialer, active, passive)
		removedAtRegister(n, endpointOf(c.link))
		all := []*Stream{c, s}
		for c.link.Info().Moves == 0 { // until the first slab is used up
			another, err := c.link.Open(t.Context())
			require.NoError(t, err)
			all = append(all, another, b.accept())
		}
		endAll(t, n, all...)
	})
}

// removedAtRegister has a device fail where it is to register memory, and nowhere else.
func removedAtRegister(n *sim.Network, of *sim.Endpoint) {
	n.SetFaults(sim.Faults{Register: func(e *sim.Endpoint, _ int) error {
		if e == of {
			return fabric.ErrDeviceRemoved
		}
		return nil
	}})
}

// NewBuffer fails as Write does, and with net.ErrClosed only if the stream's owner has closed it.
func TestNewBufferFailsAsWriteDoes(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(n *sim.Network, c, s *Stream)
		want error
	}{
		"the owner has closed it": {func(_ *sim.Network, c, _ *Stream) { _ = c.Close(0) }, net.ErrClosed},
		"an operator has":         {func(_ *sim.Network, c, _ *Stream) { _ = c.Abort() }, syscall.ECONNABORTED},
		"the device is removed":   {func(n *sim.Network, _, _ *Stream) { n.RemoveDevice() }, syscall.ENETDOWN},
		"the peer has reset it":   {func(_ *sim.Network, _, s *Stream) { _ = s.Close(0) }, syscall.ECONNRESET},
		"both have ended it, and the link has left": {func(_ *sim.Network, c, s *Stream) {
			_ = c.CloseWrite()
			_ = s.Close(time.Minute)
		}, syscall.EPIPE},
		"its link was given up": {func(_ *sim.Network, c, _ *Stream) { c.link.Abort() }, syscall.ECONNRESET},
		"the peer is gone":      {func(_ *sim.Network, _, s *Stream) { s.link.Abort() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				c, s, _ := connectLink(t, n, testConfig, testConfig)
				tt.end(n, c, s)
				time.Sleep(2 * testConfig.LinkIdle)
				for _, call := range []func() error{
					func() error { _, err := c.NewBuffer(4096); return err },
					func() error { return writeAll(c, []byte("x")) },
				} {
					err := call()
					require.ErrorIs(t, err, tt.want)
					require.Equal(t, tt.want == net.ErrClosed, err == net.ErrClosed)
				}
				endAll(t, n, c, s)
			})
		})
	}
}

// Close ends a NewBuffer that waits for another queue pair, and CloseWrite does as it ends a Write.
func TestCloseEndsNewBuffer(t *testing.T) {
	for name, ends := range map[string]struct {
		call func(s *Stream) error
		with error
	}{
		"Close":      {func(s *Stream) error { return s.Close(0) }, net.ErrClosed},
		"CloseWrite": {(*Stream).CloseWrite, syscall.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
				n.Cut(true)
				time.Sleep(10 * time.Second)
				require.True(t, c.link.Info().Seeking)
				made := make(chan error, 1)
				go func() {
					_, err := c.NewBuffer(4096)
					made <- err
				}()
				time.Sleep(time.Second)
				require.NoError(t, ends.call(c))
				select {
				case err := <-made:
					require.ErrorIs(t, err, ends.with)
				case <-time.After(time.Second):
					t.Error("NewBuffer waits on")
				}
				n.Cut(false)
			})
		})
	}
}

// A buffer comes back when the device has sent it, whatever else is sent, or is not.
func TestABufferComesBackWhenNothingElseIsSent(t *testing.T) {
	onLink(t, sim.Link{Latency: time.Millisecond}, testConfig, testConfig, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		for size := 1; size <= 256<<10; size *= 4 {
			b, err := clients[0].NewBuffer(size)
			require.NoError(t, err)
			require.NoError(t, writeAll(clients[1], make([]byte, 2<<10))) // staged before it
			discarded := make(chan error, 1)
			go func() {
				_, err := servers[0].Discard(size, unlimited())
				discarded <- err
			}()
			_, err = clients[0].WriteBuffer(b, 0, size, unlimited())
			require.NoError(t, err)
			b.Close() // waits for that
			require.NoError(t, <-discarded)
		}
		closeAtOnce(clients, servers)
	})
}

// What a WriteBuffer hands over goes to the device together, and one of its requests is signaled.
func TestABufferIsPostedAtOnce(t *testing.T) {
	dedicated := testConfig
	dedicated.Dedicated, dedicated.RecvBuffer = true, 16<<10 // so that the ring has room for several messages
	onLink(t, sim.Link{}, dedicated, dedicated, 1, func(t *testing.T, _ *sim.Network, clients, servers []*Stream) {
		c, s := clients[0], servers[0]
		size := s.Stats().Memory
		b, err := c.NewBuffer(size)
		require.NoError(t, err)
		before := c.link.Stats()
		n, err := c.WriteBuffer(b, 0, size, unlimited())
		require.NoError(t, err)
		require.Equal(t, size, n)
		after := c.link.Stats()
		require.EqualValues(t, 4, after.MessagesSent-before.MessagesSent, "each a quarter of the ring")
		require.EqualValues(t, 1, after.Signaled-before.Signaled)
		require.NoError(t, discardAll(s, size))
		b.Close()
		closeAtOnce(clients, servers)
	})
}

// A WriteBuffer posts what it has accepted before it arms the device and sleeps: else the completions of that would wake it.
func TestAWriteBufferPostsBeforeItSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Spin: 1})
		var calls []string
		f := &hooked{Fabric: n}
		asleep := testConfig
		asleep.BusyPoll, asleep.RecvBuffer = -1, 16<<10
		c, s, _ := connectLink(t, f, asleep, asleep)
		size := s.Stats().Memory
		b, err := c.NewBuffer(size + 1)
		require.NoError(t, err)
		for range engineFirstFor + 1 { // then the engine has not got the watch
			require.NoError(t, writeOne(s, c))
		}
		f.called = func(name string) { calls = append(calls, name) }
		written := make(chan error, 1)
		go func() {
			_, err := c.WriteBuffer(b, 0, size+1, unlimited())
			written <- err
		}()
		synctest.Wait()
		require.Equal(t, []string{"PostSend", "Arm"}, calls[:2])
		require.NoError(t, discardAll(s, size+1))
		require.NoError(t, <-written)
		b.Close()
		endAll(t, n, c, s)
	})
}

// A Wait takes what has completed itself, and has somebody watch for what has not: it need not wait until the timer
// gives the watch to the engine.
func TestAWaitIsNotLeftToTheTimer(t *testing.T) {
	for name, latency := range map[string]time.Duration{"completed": 0, "under way": 10 * time.Microsecond} {
		t.Run(name, func(t *testing.T) {
			onLink(t, sim.Link{Spin: 1, Latency: latency}, testConfig, testConfig, 1, func(t *testing.T, _ *sim.Network, clients, servers []*Stream) {
				c, s := clients[0], servers[0]
				b, err := c.NewBuffer(4096)
				require.NoError(t, err)
				for range engineFirstFor + 1 { // then the engine has not got the watch
					require.NoError(t, writeOne(s, c))
				}
				began := time.Now()
				_, err = c.WriteBuffer(b, 0, 1, unlimited())
				require.NoError(t, err)
				synctest.Wait()
				b.Wait()
				require.Less(t, time.Since(began), watchWithin)
				if latency == 0 {
					require.Nil(t, c.link.watch.holder, "nobody else has been woken")
				}
				require.NoError(t, discardAll(s, 1))
				b.Close()
				closeAtOnce(clients, servers)
			})
		})
	}
}

// writeOne sends a byte to a stream that waits for it.
func writeOne(from, to *Stream) error {
	go func() { _, _ = from.Write([]byte("x"), unlimited()) }()
	_, err := to.Read(make([]byte, 1), unlimited())
	return err
}

func discardAll(s *Stream, n int) error {
	_, err := s.Discard(n, unlimited())
	return err
}
