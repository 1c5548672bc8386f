//go:build linux && cgo

package verbs

// The connection manager's events. One event channel serves the process and one
// goroutine, the event loop, reads it without delay: the kernel frees a place in a
// listener's backlog when the request has been read. Each event is dispatched before it
// is acknowledged, and rdma_destroy_id waits for the acknowledgement, so an id cannot be
// freed and its address used again while its event is being dispatched.

// #include "shim.h"
import "C"

import (
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

type cmID = *C.struct_rn_rdma_cm_id

// cmEvent is the part of an rdma_cm_event that is used after it has been acknowledged.
type cmEvent struct {
	kind    uint32
	status  int
	private []byte
	request cmID    // CONNECT_REQUEST: the new id
	service service // ESTABLISHED, in the port space for UDP, and MULTICAST_JOIN
}

// service is the address of a receiver that has answered an SIDR REQ, or of a group.
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
		case C.RN_RDMA_CM_EVENT_UNREACHABLE: // perhaps a rejection by the receiver
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

// privateOf copies the private data, which the acknowledgement of the event frees.
func privateOf(event *C.struct_rn_rdma_cm_event) []byte {
	return C.GoBytes(unsafe.Pointer(event.conn.private_data), C.int(event.conn.private_data_len))
}

// refuse rejects a request that no endpoint will accept, with the private data, in a
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

// createID makes an id. It sets the traffic class first: the kernel reads it when it
// resolves the address, and a connection to a listener copies it when it begins.
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

// bind makes an id that is bound to an address of this host. With v6only unset, one of IPv6 stands
// for IPv4, too.
func (f rdma) bind(local netip.AddrPort, v6only bool) (cmID, error) {
	s, err := toSockaddr(local)
	if err != nil {
		return nil, err
	}
	id, err := f.createID()
	if err != nil {
		return nil, err
	}
	alone := C.int(0)
	if v6only {
		alone = 1
	}
	if rc := C.rn_bind(id, &s, alone); rc != 0 {
		err = addrError("rdma_bind_addr", syscall.Errno(rc), local.Addr())
	} else {
		err = refuseIWARP(id)
	}
	if err != nil {
		f.destroyID(id)
		return nil, err
	}
	return id, nil
}

// bindToPort does that for an address that a port of a device has.
func (f rdma) bindToPort(local netip.Addr) (cmID, error) {
	id, err := f.bind(netip.AddrPortFrom(local, 0), false)
	if err == nil && id.verbs == nil {
		f.destroyID(id)
		return nil, addrError("rdma_bind_addr", syscall.ENODEV, local)
	}
	return id, err
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

// destroyID forgets the id first: once it is destroyed, its address may be used for
// another.
func (m *manager) destroyID(id cmID) error {
	m.forget(id)
	if rc := C.rn_destroy_id(id); rc != 0 {
		return syscallError("rdma_destroy_id", rc)
	}
	return nil
}
