// Faults on command.

package sim_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestSetUpFailsOnCommand(t *testing.T) {
	full := errors.New("full")
	n := network(t, sim.Link{})
	n.SetFaults(sim.Faults{Open: func(*sim.Endpoint) error { return full }})
	e, err := n.Dial(ctx, netip.AddrPort{}, server)
	require.NoError(t, err)
	_, err = e.Open(options)
	require.ErrorIs(t, err, full)

	n.SetFaults(sim.Faults{Register: func(_ *sim.Endpoint, size int) error {
		if size > 4096 {
			return full
		}
		return nil
	}})
	open(t, e, options)
	register(t, e, 4096, fabric.LocalWrite)
	_, err = e.Register(4097, fabric.LocalWrite)
	require.ErrorIs(t, err, full)
	require.NoError(t, e.Close())
}

func TestPostSendFailsOnCommand(t *testing.T) {
	full := errors.New("full")
	n := network(t, sim.Link{})
	a, b := connect(t, n)
	n.SetFaults(sim.Faults{PostSend: func(e *sim.Endpoint, wr []fabric.WorkRequest) error {
		if e == a && len(wr) > 1 {
			return full
		}
		return nil
	}})
	require.ErrorIs(t, a.PostSend([]fabric.WorkRequest{send(1, "x"), send(2, "x")}), full)
	require.Empty(t, poll(t, b), "none was posted")
	post(t, a, send(1, "x"))
	require.Len(t, poll(t, b), 1)
}

func TestQueuesAreGrantedUpToTheDevicesLimits(t *testing.T) {
	n := network(t, sim.Link{SendQueue: 8, RecvQueue: 32, Inline: -1, Spin: 3})
	e, err := n.Dial(ctx, netip.AddrPort{}, server)
	require.NoError(t, err)
	l, err := e.Open(options)
	require.NoError(t, err)
	assert.Equal(t, fabric.Limits{SendQueue: 8, RecvQueue: 16, Spin: 3}, l)
	require.NoError(t, e.Close())
}

func TestPortDownIsAnnouncedAndNothingElse(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := connect(t, n)
	n.PortDown()
	require.ErrorIs(t, a.Wait(), fabric.ErrPortDown)
	require.ErrorIs(t, b.Wait(), fabric.ErrPortDown)
	post(t, a, send(1, "x"))
	require.Len(t, poll(t, b), 1)
}

func TestRemovedDeviceFlushesEverything(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := connect(t, n)
	n.RemoveDevice()
	for _, e := range []*sim.Endpoint{a, b} {
		require.ErrorIs(t, e.Wait(), fabric.ErrDeviceRemoved)
		require.Equal(t, flushed(16), poll(t, e))
	}
	_, err := n.Dial(ctx, netip.AddrPort{}, server)
	require.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	_, err = n.Listen(server, 1)
	require.ErrorIs(t, err, fabric.ErrDeviceRemoved)
}

func TestUnflushedQueuePairKeepsWhatIsPosted(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := connect(t, n)
	n.SetFaults(sim.Faults{Unflushed: func(e *sim.Endpoint) bool { return e == b }})
	post(t, a, send(1, "x"))
	n.RemoveDevice()
	require.ErrorIs(t, b.Wait(), fabric.ErrDeviceRemoved)
	require.NoError(t, b.Disconnect())
	require.Len(t, poll(t, b), 1, "what had arrived")
	require.NoError(t, b.PostRecv(1))
	require.Empty(t, poll(t, b))
	require.Equal(t, flushed(16), poll(t, a)[1:], "the other one is flushed")
}

func TestKilledEndpointEndsForItsOwnerToo(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		a.Kill()
		require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
		require.Equal(t, flushed(16), poll(t, a))
		start := time.Now()
		require.ErrorIs(t, b.Wait(), fabric.ErrDisconnected)
		require.Equal(t, latency, time.Since(start))
		require.NoError(t, a.Disconnect())
		require.NoError(t, b.Disconnect())
		time.Sleep(time.Hour)
		done := waiting(a)
		synctest.Wait()
		require.Empty(t, done, "disconnected once")
		a.Wake()
		<-done
	})
}
