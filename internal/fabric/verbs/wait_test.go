//go:build linux && cgo

package verbs

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ringnet/ringnet/internal/fabric"
)

// waitForChange waits until Wait returns a change of the connection.
func waitForChange(t testing.TB, e fabric.Endpoint) error {
	t.Helper()
	for {
		if err := within(t, waited(e)); err != nil {
			return err
		}
	}
}

// The device's events reach the endpoints that they concern.
func TestAsynchronousEvents(t *testing.T) {
	const cqErr, qpFatal, accessErr, deviceFatal, portErr, pkeyChange = 0, 1, 3, 8, 10, 12
	one, two := newEndpoint(rdma{}, nil), newEndpoint(rdma{}, nil)
	one.port, two.port = 1, 2
	d := &device{
		endpoints: map[*endpoint]struct{}{one: {}, two: {}},
		byElement: map[uint64]*endpoint{0x1000: one, 0x1008: one, 0x2000: two, 0x2008: two},
	}

	d.dispatch(qpFatal, 0x1000)
	err := one.changes.Next()
	assert.ErrorIs(t, err, fabric.ErrQueuePair)
	assert.ErrorContains(t, err, "IBV_EVENT_QP_FATAL")
	d.dispatch(accessErr, 0x1000)
	assert.NoError(t, one.changes.Next(), "told before")
	d.dispatch(cqErr, 0x2008)
	assert.ErrorContains(t, two.changes.Next(), "IBV_EVENT_CQ_ERR")
	d.dispatch(qpFatal, 0x3000) // gone by now

	for range 2 {
		d.dispatch(portErr, 2)
		assert.ErrorIs(t, two.changes.Next(), fabric.ErrPortDown)
	}
	d.dispatch(pkeyChange, 1)
	assert.NoError(t, one.changes.Next())

	d.dispatch(deviceFatal, 0)
	assert.ErrorIs(t, one.changes.Next(), fabric.ErrDeviceRemoved)
	assert.ErrorIs(t, two.changes.Next(), fabric.ErrDeviceRemoved)
}
