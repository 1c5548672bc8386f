//go:build linux && cgo

package verbs

import (
	"context"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
	"github.com/ringnet/ringnet/internal/wire"
)

// However many receives are posted, only the mailbox is registered for them.
func TestReceivesTakeNoMemoryOfTheirOwn(t *testing.T) {
	f, addr := onDevice(t)
	e, err := f.Dial(context.Background(), netip.AddrPort{}, listen(t, f, addr).Addr())
	require.NoError(t, err)
	defer e.Close()
	o := options
	o.RecvQueue, o.RecvSize, o.Sends = 270, 256, 14
	_, err = e.Open(o)
	require.NoError(t, err)
	require.NoError(t, e.PostRecv(o.RecvQueue))
	assert.Equal(t, fabric.PageSize+fabric.Pages(o.SendQueue*rdmacore.MaxInline), e.(*endpoint).Registered(), "and inline data")
	assert.Equal(t, fabric.PageSize, e.Footprint(o).Receives)
}

// A side that has no place for this side's Sends is told so, whichever of the two has dialed.
func TestPeersWithoutAMailboxAreRefused(t *testing.T) {
	f, addr := onDevice(t)
	unnamed := func(e fabric.Endpoint) { e.(*endpoint).in.memory = new(rdmacore.Memory) }
	refused := func(err error) {
		t.Helper()
		var reject *fabric.RejectError
		require.ErrorAs(t, err, &reject)
		assert.Equal(t, fabric.RejectConsumer, reject.Reason)
		assert.Equal(t, wire.Reject{Reason: "no mailbox is named"}, wire.DecodeReject(reject.Private))
	}
	for _, dialer := range []bool{true, false} {
		l := listen(t, f, addr)
		served := accepting(t, l, func(b fabric.Endpoint) error {
			if err := openEndpoint(b); err != nil {
				return err
			}
			if !dialer {
				unnamed(b)
			}
			return b.Accept(context.Background(), nil)
		})
		a := opened(t, f, l.Addr())
		if dialer {
			unnamed(a)
		}
		_, err := a.Connect(context.Background(), nil)
		if dialer {
			refused(err)
			err = rdmatest.Within(t, served)
		} else {
			refused(rdmatest.Within(t, served))
		}
		assert.ErrorIs(t, err, syscall.EPROTO)
		assert.ErrorContains(t, err, "no mailbox is named")
	}
}

// The peer may write to its slot at any time. Data that has been polled stays as it was.
func TestSendDataStaysAsPolled(t *testing.T) {
	a, b := pair(t)
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: []byte("first"), Signaled: true})
	require.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
	c := poll(t, b, 1)[0]

	out := a.(*endpoint).out
	post(t, a, fabric.WorkRequest{Op: fabric.Write, Data: []byte("other"), RemoteAddr: out.addr, RKey: out.rkey, Signaled: true})
	require.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
	assert.Equal(t, "other", string(b.(*endpoint).in.memory.Bytes()[:5]))
	assert.Equal(t, "first", string(c.Data))
}

func TestSendTooLongIsALengthError(t *testing.T) {
	a, b := pair(t)
	m := register(t, a, 4096, fabric.LocalWrite)
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: m.Bytes()[:options.RecvSize+1], Memory: m, Signaled: true})
	assert.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
	assert.Equal(t, fabric.Completion{Recv: true, Status: fabric.LocalLength}, poll(t, b, 1)[0])

	// Beyond the mailbox it does not arrive.
	post(t, a, fabric.WorkRequest{ID: 7, Op: fabric.Send, Data: m.Bytes(), Memory: m, Signaled: true})
	c := poll(t, a, 1)[0]
	assert.Equal(t, fabric.RemoteAccess, c.Status)
	assert.Equal(t, uint64(7), c.ID)
}
