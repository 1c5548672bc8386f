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

func TestBytesArriveWithinPostSendOnAnInstantLink(t *testing.T) {
	a, b := connect(t, network(t, sim.Link{}))
	m := register(t, b, 100, fabric.RemoteWrite)
	post(t, a,
		fabric.WorkRequest{ID: 1, Op: fabric.WriteImm, Data: []byte("abc"), RemoteAddr: m.Addr() + 5, RKey: m.RKey(), Imm: 7, Signaled: true},
		send(2, "defg"),
	)
	assert.Equal(t, []fabric.Completion{
		{Recv: true, Op: fabric.WriteImm, Imm: 7, Len: 3},
		{Recv: true, Op: fabric.Send, Len: 4, Data: []byte("defg")},
	}, poll(t, b))
	assert.Equal(t, "abc", string(m.Bytes()[5:8]))
	assert.Equal(t, []fabric.Completion{{ID: 1}, {ID: 2}}, poll(t, a))
}

func TestSlotIsFreedByPollingItsCompletionOrALaterOne(t *testing.T) {
	a, b := connect(t, network(t, sim.Link{}))
	for i := range 16 {
		wr := send(uint64(i), "x")
		wr.Signaled = i == 7
		post(t, a, wr)
	}
	require.Len(t, poll(t, b), 16)
	require.NoError(t, b.PostRecv(16))
	require.ErrorIs(t, a.PostSend([]fabric.WorkRequest{send(16, "x")}), syscall.ENOMEM, "all have ended, but none was polled")

	require.Equal(t, []fabric.Completion{{ID: 7}}, poll(t, a))
	eight := make([]fabric.WorkRequest, 8)
	for i := range eight {
		eight[i] = send(uint64(16+i), "x")
	}
	require.ErrorIs(t, a.PostSend(append(eight, send(24, "x"))), syscall.ENOMEM, "slots 0 to 7 are free, no more")
	require.Empty(t, poll(t, b), "none of nine was posted")
	post(t, a, eight...)
	require.Len(t, poll(t, b), 8)
}

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

func TestDataOutsideItsMemoryIsALocalProtectionError(t *testing.T) {
	for name, wr := range map[string]func(a, b *sim.Endpoint) fabric.WorkRequest{
		"not in it": func(a, _ *sim.Endpoint) fabric.WorkRequest {
			return fabric.WorkRequest{ID: 9, Data: []byte("x"), Memory: register(t, a, 1, fabric.LocalWrite)}
		},
		"of another endpoint": func(_, b *sim.Endpoint) fabric.WorkRequest {
			m := register(t, b, 1, fabric.LocalWrite)
			return fabric.WorkRequest{ID: 9, Data: m.Bytes()[:1], Memory: m}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connect(t, network(t, sim.Link{}))
			post(t, a, wr(a, b))
			assert.Equal(t, append([]fabric.Completion{{ID: 9, Status: fabric.LocalProtection}}, flushed(16)...), poll(t, a))
			assert.Empty(t, poll(t, b))
		})
	}
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
