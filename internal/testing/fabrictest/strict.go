package fabrictest

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// What fabrics promise that are no devices.

func message(id uint64) fabric.WorkRequest {
	return fabric.WorkRequest{ID: id, Op: fabric.Send, Data: []byte("x"), Signaled: true}
}

func testSlots(t *testing.T, pair Pair) {
	a, b := pair(t)
	queue := Options.SendQueue
	for i := range queue {
		wr := message(uint64(i))
		wr.Signaled = i == 7
		Post(t, a, wr)
	}
	Poll(t, b, queue)
	require.NoError(t, b.PostRecv(queue))
	require.ErrorIs(t, a.PostSend([]fabric.WorkRequest{message(16)}), syscall.ENOMEM, "all have ended, but none was polled")
	assert.Equal(t, fabric.Completion{ID: 7}, Poll(t, a, 1)[0])
	nine := make([]fabric.WorkRequest, 9)
	for i := range nine {
		nine[i] = message(uint64(16 + i))
	}
	require.ErrorIs(t, a.PostSend(nine), syscall.ENOMEM, "slots 0 to 7 are free, no more")
	none(t, b, "none of nine was posted")
	Post(t, a, nine[:8]...)
	Poll(t, b, 8)
}

func testReceives(t *testing.T, pair Pair) {
	a, b := pair(t)
	Post(t, a, message(1))
	require.ErrorIs(t, b.PostRecv(1), syscall.ENOMEM)
	Poll(t, b, 1)
	require.ErrorIs(t, b.PostRecv(2), syscall.ENOMEM)
	require.NoError(t, b.PostRecv(1))
}

func testWithoutReceive(t *testing.T, pair Pair) {
	for _, op := range []fabric.Opcode{fabric.Send, fabric.WriteImm} {
		a, b := pair(t)
		for i := range Options.RecvQueue {
			Post(t, a, message(uint64(i)))
			Poll(t, a, 1)
		}
		Post(t, a, fabric.WorkRequest{ID: 8, Op: fabric.Write, Signaled: true})
		assert.Equal(t, fabric.Completion{ID: 8}, Poll(t, a, 1)[0], "a probe takes none")
		Post(t, a, fabric.WorkRequest{ID: 9, Op: op})
		requireFailed(t, a, 9, fabric.RNRRetryExceeded)
		flushes(t, a, Options.RecvQueue)
		for _, c := range Poll(t, b, Options.RecvQueue) {
			assert.Equal(t, fabric.OK, c.Status, "what had arrived")
		}
		require.NoError(t, a.PostRecv(2))
		flushes(t, a, 2)
	}
}

func testTooLong(t *testing.T, pair Pair) {
	a, b := pair(t)
	fits := make([]byte, Options.RecvSize)
	Post(t, a, fabric.WorkRequest{ID: 1, Op: fabric.Send, Data: fits, Signaled: true})
	Poll(t, a, 1)
	Post(t, a, fabric.WorkRequest{ID: 2, Op: fabric.Send, Data: append(fits, 0)})
	requireFailed(t, a, 2, fabric.RemoteInvalidRequest)
	flushes(t, a, Options.RecvQueue)
	assert.Equal(t, fabric.OK, Poll(t, b, 1)[0].Status)
}

func testLocalProtection(t *testing.T, pair Pair) {
	for name, data := range map[string]func(a, b fabric.Endpoint) ([]byte, fabric.Memory){
		"not in it": func(a, _ fabric.Endpoint) ([]byte, fabric.Memory) {
			return []byte("x"), Register(t, a, 1, fabric.LocalWrite)
		},
		"of another endpoint": func(_, b fabric.Endpoint) ([]byte, fabric.Memory) {
			m := Register(t, b, 1, fabric.LocalWrite)
			return m.Bytes(), m
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			wr := fabric.WorkRequest{ID: 9, Op: fabric.Send}
			wr.Data, wr.Memory = data(a, b)
			Post(t, a, wr)
			requireFailed(t, a, 9, fabric.LocalProtection)
			flushes(t, a, Options.RecvQueue)
			none(t, b, "nothing was sent")
		})
	}
}
