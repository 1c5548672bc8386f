// The send queue: order, slots, acknowledgements, errors.

package sim_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestInlineDataIsLimitedAndTheCallersAgain(t *testing.T) {
	virtual(t, sim.Link{Latency: time.Millisecond}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		require.ErrorIs(t, a.PostSend([]fabric.WorkRequest{send(1, strings.Repeat("x", sim.DefaultInline+1))}), syscall.EINVAL)
		data := []byte("mine")
		post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: data})
		copy(data, "ours")
		assert.Equal(t, "mine", string(await(t, b)[0].Data))
	})
}

func TestRegisteredDataIsReadUntilItHasArrived(t *testing.T) {
	virtual(t, sim.Link{Latency: time.Millisecond}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		m := register(t, a, 4, fabric.LocalWrite)
		copy(m.Bytes(), "good")
		post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: m.Bytes()[:4], Memory: m})
		copy(m.Bytes(), "evil")
		assert.Equal(t, "evil", string(await(t, b)[0].Data), "a bug in the caller shows")
	})
}

func TestErrorComesFirstAndFlushesTheRest(t *testing.T) {
	virtual(t, sim.Link{Latency: time.Millisecond}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		n.SetFaults(sim.Faults{Send: func(_ *sim.Endpoint, wr *fabric.WorkRequest) fabric.Status {
			if wr.ID == 2 {
				return fabric.RemoteOperation
			}
			return fabric.OK
		}})
		quiet := send(1, "quiet")
		quiet.Signaled = false
		post(t, a, send(0, "a"), quiet, send(2, "b"), send(3, "c"), quiet)
		time.Sleep(time.Second)
		assert.Equal(t, append([]fabric.Completion{
			{ID: 0},
			{ID: 2, Status: fabric.RemoteOperation},
			{ID: 3, Status: fabric.Flushed},
			{ID: 1, Status: fabric.Flushed},
		}, flushed(16)...), poll(t, a))
		assert.Len(t, poll(t, b), 2, "what came before the error")

		post(t, a, send(5, "d"))
		require.NoError(t, a.PostRecv(1))
		assert.Equal(t, append([]fabric.Completion{{ID: 5, Status: fabric.Flushed}}, flushed(1)...), poll(t, a))
	})
}

func TestBytesTakeTheirTimeOnTheLink(t *testing.T) {
	virtual(t, sim.Link{Latency: 5 * time.Millisecond, Bandwidth: 3_000_000}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		start := time.Now()
		for range 15 {
			post(t, a, send(0, strings.Repeat("x", 64)))
		}
		for got := 0; got < 15; {
			got += len(await(t, b))
		}
		assert.Equal(t, 15*64*time.Second/3_000_000+5*time.Millisecond, time.Since(start), "N bytes take N/B and the latency")
	})
}

func TestConnectionsShareTheBandwidthOfADirection(t *testing.T) {
	virtual(t, sim.Link{Bandwidth: 1000}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		c, d := connect(t, n)
		start := time.Now()
		post(t, a, send(0, strings.Repeat("x", 50)))
		post(t, c, send(0, strings.Repeat("x", 50)))
		await(t, b)
		assert.Equal(t, 50*time.Millisecond, time.Since(start))
		post(t, b, send(0, strings.Repeat("x", 30)))
		await(t, a)
		await(t, a)
		assert.Equal(t, 80*time.Millisecond, time.Since(start), "the other direction is free")
		await(t, d)
		assert.Equal(t, 100*time.Millisecond, time.Since(start))
	})
}
