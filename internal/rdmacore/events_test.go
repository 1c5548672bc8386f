//go:build linux && cgo

package rdmacore

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// The numbers in these tests are those of rdma_cm_event_type, which TestABI proves.

func TestConnectErrors(t *testing.T) {
	const connectError, unreachable, rejected, disconnected, removal = 6, 7, 8, 10, 11
	for _, tt := range []struct {
		event Event
		want  error
	}{
		{Event{Kind: unreachable, Status: -int(syscall.ETIMEDOUT)}, syscall.ETIMEDOUT},
		{Event{Kind: unreachable, Status: -int(syscall.EHOSTUNREACH)}, syscall.EHOSTUNREACH},
		{Event{Kind: unreachable, Status: -int(syscall.ENETUNREACH)}, syscall.EHOSTUNREACH},
		{Event{Kind: connectError, Status: -int(syscall.EINVAL)}, syscall.EINVAL},
		{Event{Kind: connectError, Status: 0}, syscall.ECONNABORTED},
		{Event{Kind: disconnected}, fabric.ErrDisconnected},
		{Event{Kind: removal}, fabric.ErrDeviceRemoved},
	} {
		assert.ErrorIs(t, tt.event.Err(), tt.want, "%+v", tt.event)
	}

	var reject *fabric.RejectError
	require.ErrorAs(t, Event{Kind: rejected, Status: 28, Private: []byte("no")}.Err(), &reject)
	assert.Equal(t, fabric.RejectError{Reason: 28, Private: []byte("no")}, *reject)
	require.ErrorAs(t, Event{Kind: unreachable, Status: 1, Private: []byte("no")}.Err(), &reject)
	assert.Equal(t, fabric.RejectError{Reason: fabric.RejectNoListener, Private: []byte("no")}, *reject, "to a request for datagrams")
}

// The device's events reach the queue pairs that they concern.
func TestAsynchronousEvents(t *testing.T) {
	const cqErr, qpFatal, accessErr, deviceFatal, portErr, pkeyChange = 0, 1, 3, 8, 10, 12
	one, two := &QueuePair{ID: new(ID)}, &QueuePair{ID: new(ID)}
	one.port, two.port = 1, 2
	d := &device{
		queuePairs: map[*QueuePair]struct{}{one: {}, two: {}},
		byElement:  map[uint64]*QueuePair{0x1000: one, 0x1008: one, 0x2000: two, 0x2008: two},
	}

	d.dispatch(qpFatal, 0x1000)
	err := one.ID.changes.Next()
	assert.ErrorIs(t, err, fabric.ErrQueuePair)
	assert.ErrorContains(t, err, "IBV_EVENT_QP_FATAL")
	d.dispatch(accessErr, 0x1000)
	assert.NoError(t, one.ID.changes.Next(), "told before")
	d.dispatch(cqErr, 0x2008)
	assert.ErrorContains(t, two.ID.changes.Next(), "IBV_EVENT_CQ_ERR")
	d.dispatch(qpFatal, 0x3000) // gone by now

	for range 2 {
		d.dispatch(portErr, 2)
		assert.ErrorIs(t, two.ID.changes.Next(), fabric.ErrPortDown)
	}
	d.dispatch(pkeyChange, 1)
	assert.NoError(t, one.ID.changes.Next())

	d.dispatch(deviceFatal, 0)
	assert.ErrorIs(t, one.ID.changes.Next(), fabric.ErrDeviceRemoved)
	assert.ErrorIs(t, two.ID.changes.Next(), fabric.ErrDeviceRemoved)
}
