//go:build linux && cgo

package rdmacore

// Wait and Wake: sleeping on the completion channel's descriptor.

// #cgo noescape rn_take_event
// #cgo nocallback rn_take_event
// #include "shim.h"
import "C"

import (
	"net"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Spin is the number of polls worth making before waiting for an event: at
// 50 to 100 ns each some tens of microseconds, a few times what sleeping and
// being woken costs.
const Spin = 500

// Arm asks for one event: the next completion makes Wait return. What completed before may make none.
// It is called by one goroutine at a time, and does nothing if the event of the last Arm has not been
// taken: Wait returns for that, and each that is not taken stays in the kernel's memory.
func (q *QueuePair) Arm() error {
	if q.Queue == nil {
		return net.ErrClosed
	}
	if q.armed.Swap(true) {
		return nil
	}
	if rc := C.rn_arm(q.Queue.handle); rc != 0 {
		q.armed.Store(false)
		return q.device.error("ibv_req_notify_cq", rc)
	}
	return nil
}

// Disarm has Wait not return for the event of the last Arm.
func (q *QueuePair) Disarm() { q.armed.Store(false) }

// Wait blocks until the armed event, Wake, or a change of the queue pair, and holds no thread
// meanwhile. It may return nil for no reason. A change is returned once, as an error that wraps
// one of those of package fabric: ErrPortDown, ErrAddressChanged, ErrPathLost, ErrDisconnected, ErrDeviceRemoved
// or ErrQueuePair.
func (q *QueuePair) Wait() error {
	if err := q.ID.changes.Next(); err != nil {
		return err
	}
	if q.Queue == nil {
		return net.ErrClosed
	}
	if err := q.ID.sleeper.Load().Sleep(q.take); err != nil {
		return err
	}
	return q.ID.changes.Next()
}

// Wake makes the present or the next Wait return, with a change if there is one.
func (q *QueuePair) Wake() { q.ID.wake() }

// TakeEvent takes a completion event, if there is one, and reports whether it is that of an Arm.
func (q *QueuePair) TakeEvent() bool { return q.takeEvent(0) }

// takeEvent takes a completion event. It returns false if the Sleeper is to sleep on.
// When it returns true, few events are left for the next calls: there are no more of
// them than Arms.
func (q *QueuePair) takeEvent(uintptr) bool {
	if q.deviceGone {
		return false
	}
	var taken C.int
	if rc := C.rn_take_event(q.Queue.c, &taken); rc != 0 && syscall.Errno(rc) != syscall.EINTR {
		// The kernel has cut the device off.
		q.deviceGone = true
		q.ID.notify(fabric.ErrDeviceRemoved, fabric.ErrDeviceRemoved)
		return true
	}
	// The event may be that of an Arm that Disarm has undone, for which no Wait is to return.
	return taken != 0 && q.armed.Swap(false)
}
