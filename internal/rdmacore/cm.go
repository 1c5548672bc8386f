//go:build linux && cgo

package rdmacore

// The connection manager's events. One event channel serves the process and one
// goroutine, the event loop, reads it without delay: the kernel frees a place in a
// listener's backlog when the request has been read. Each event is dispatched before it
// is acknowledged, and rdma_destroy_id waits for the acknowledgement, so an id cannot be
// freed and its address used again while its event is being dispatched.

// #include "shim.h"
import "C"

import (
	"os"
	"sync"
	"syscall"
	"time"
)

type cmID = *C.struct_rn_rdma_cm_id

// receiver is an ID or a listener. Receive runs in the event loop: it must not wait for
// anything, least of all for a connection manager call.
type receiver interface {
	Receive(Event)
}

// manager is the event channel and all that is attached to it.
type manager struct {
	channel *C.struct_rn_rdma_event_channel
	devices devices
	relaxed bool // see relaxedOrdering

	mu        sync.Mutex // guards receivers
	receivers map[cmID]receiver

	refusals chan struct{} // one element per refusal under way
}

// maxRefusals bounds the refusals that are under way at once. When it is reached, the
// event loop waits, the backlog fills, and the kernel refuses requests by itself.
const maxRefusals = 32

func newManager(channel *C.struct_rn_rdma_event_channel, relaxed bool) (*manager, error) {
	m := &manager{
		channel:   channel,
		relaxed:   relaxed,
		receivers: make(map[cmID]receiver),
		refusals:  make(chan struct{}, maxRefusals),
	}
	fd := int(channel.fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	raw, err := os.NewFile(uintptr(fd), "rdma_event_channel").SyscallConn()
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			if raw.Read(m.drain) != nil {
				return
			}
		}
	}()
	return m, nil
}

// drain dispatches all pending events. It returns false when there is none left, so that
// raw.Read waits for more, and true to be called again.
func (m *manager) drain(uintptr) bool {
	for {
		var event *C.struct_rn_rdma_cm_event
		switch rc := C.rn_next_cm_event(m.channel, &event); syscall.Errno(rc) {
		case 0:
			m.dispatch(event)
			C.rn_ack_cm_event(event)
		case syscall.EAGAIN:
			return false
		case syscall.ENOMEM:
			time.Sleep(10 * time.Millisecond)
		case syscall.EBADF:
			return true
		default:
			// An event that the library dealt with by itself, such as a
			// request whose device it could not open.
		}
	}
}

func (m *manager) dispatch(event *C.struct_rn_rdma_cm_event) {
	e, id := decodeEvent(event)
	m.mu.Lock()
	r := m.receivers[id]
	m.mu.Unlock()
	switch {
	case r != nil:
		r.Receive(e)
	case e.request != nil:
		m.refuse(e.request, nil)
	}
}

// refuse rejects a request that nobody will accept, with the private data, in a
// goroutine so that the event loop does not wait for the connection manager.
func (m *manager) refuse(id cmID, private []byte) {
	m.refusals <- struct{}{}
	go func() {
		data, n := privateData(private)
		C.rn_reject(id, data, n)
		C.rn_destroy_id(id)
		<-m.refusals
	}()
}

func (m *manager) register(id cmID, r receiver) {
	m.mu.Lock()
	m.receivers[id] = r
	m.mu.Unlock()
}

func (m *manager) forget(id cmID) {
	m.mu.Lock()
	delete(m.receivers, id)
	m.mu.Unlock()
}

// destroy forgets the id first: once it is destroyed, its address may be used for
// another.
func (m *manager) destroy(id cmID) error {
	m.forget(id)
	if rc := C.rn_destroy_id(id); rc != 0 {
		return syscallError("rdma_destroy_id", rc)
	}
	return nil
}
