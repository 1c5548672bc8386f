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
