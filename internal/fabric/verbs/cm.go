//go:build linux && cgo

package verbs

// The connection manager's events. One event channel serves the process and
// one goroutine drains it at once: the kernel frees a place in a listener's
// backlog when the request has been read. Each event is handed on before it is
// acknowledged, and rdma_destroy_id waits for that, so an id cannot be freed
// and its address used again while its event is under way.

// #include "shim.h"
import "C"

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

type cmID = *C.struct_rn_rdma_cm_id

// cmEvent is what is left of an rdma_cm_event once it has been acknowledged.
type cmEvent struct {
	kind    uint32
	status  int
	private []byte
	request cmID    // CONNECT_REQUEST: the new id
	service service // ESTABLISHED, in the port space for UDP, and MULTICAST_JOIN
}

// service is where the one is who answered an SIDR REQ, or a group.
type service struct {
	attr   C.struct_rn_ibv_ah_attr
	number uint32 // of the queue pair
}

// receiver is an endpoint or a listener. Its methods run in the event loop:
// they must not wait for anything, least of all for a connection manager call.
type receiver interface {
	receive(cmEvent)
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

// maxRefusals bounds the refusals that are under way at once. Then the event
// loop waits, the backlog fills, and the kernel refuses by itself.
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

// drain handles all events there are. It returns false when there is none, so
// that the caller sleeps, and true to be called again.
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
	e := cmEvent{kind: uint32(event.event), status: int(event.status)}
	id := event.id
	switch e.kind {
	case C.RN_RDMA_CM_EVENT_CONNECT_REQUEST:
		e.request, id = event.id, event.listen_id
		e.private = privateOf(event)
	case C.RN_RDMA_CM_EVENT_CONNECT_RESPONSE, C.RN_RDMA_CM_EVENT_ESTABLISHED, C.RN_RDMA_CM_EVENT_REJECTED:
		e.private = privateOf(event)
	}
	if id.ps == C.RN_RDMA_PS_UDP {
		switch e.kind {
		case C.RN_RDMA_CM_EVENT_ESTABLISHED, C.RN_RDMA_CM_EVENT_MULTICAST_JOIN:
			ud := C.rn_ud_param(event)
			e.service = service{ud.ah_attr, uint32(ud.qp_num)}
		case C.RN_RDMA_CM_EVENT_UNREACHABLE: // by the one who has been asked, perhaps
			e.private = privateOf(event)
		}
	}
	m.mu.Lock()
	r := m.receivers[id]
	m.mu.Unlock()
	switch {
	case r != nil:
		r.receive(e)
	case e.request != nil:
		m.refuse(e.request, nil)
	}
}

// privateOf copies the private data, which is gone once the event has been
// acknowledged.
func privateOf(event *C.struct_rn_rdma_cm_event) []byte {
	return C.GoBytes(unsafe.Pointer(event.conn.private_data), C.int(event.conn.private_data_len))
}

// refuse rejects a request that nobody is going to accept, with the private
// data, apart from the event loop.
func (m *manager) refuse(id cmID, private []byte) {
	m.refusals <- struct{}{}
	go func() {
		data, n := privateData(private)
		C.rn_reject(id, data, n)
		C.rn_destroy_id(id)
		<-m.refusals
	}()
}

// createID makes an id. Its traffic class comes before anything else: it is
// looked at when the address is resolved, and by connections to a listener when
// they begin.
func (f rdma) createID() (cmID, error) {
	var id cmID
	if rc := C.rn_create_id(f.channel, f.space, &id); rc != 0 {
		return nil, syscallError("rdma_create_id", rc)
	}
	if class, ok := f.config.class(); ok {
		if rc := C.rn_set_traffic_class(id, C.uint8_t(class)); rc != 0 {
			C.rn_destroy_id(id)
			return nil, syscallError("rdma_set_option (RDMA_OPTION_ID_TOS)", rc)
		}
	}
	return id, nil
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

// destroyID forgets the id first: once it is destroyed, its address may come
// back as that of another.
func (m *manager) destroyID(id cmID) error {
	m.forget(id)
	if rc := C.rn_destroy_id(id); rc != 0 {
		return syscallError("rdma_destroy_id", rc)
	}
	return nil
}
