//go:build linux && cgo

package rdmacore

// What an event of the connection manager says.

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Event is the part of an rdma_cm_event that is used after it has been acknowledged.
type Event struct {
	Kind    EventKind
	Status  int     // an errno, negative, of the kernel's, or as rdma_get_cm_event(3) has it
	Private []byte  // the peer's private data, possibly padded with zeros
	Service Service // Established, in the port space UDP, and multicastJoined

	request cmID // connectRequest: the new id
}

// EventKind is what has happened: an rdma_cm_event_type.
type EventKind uint32

// The kinds that others than this package wait for, or tests make.
const (
	ConnectResponse EventKind = C.RN_RDMA_CM_EVENT_CONNECT_RESPONSE
	Unreachable     EventKind = C.RN_RDMA_CM_EVENT_UNREACHABLE
	Established     EventKind = C.RN_RDMA_CM_EVENT_ESTABLISHED
)

const (
	addrResolved    EventKind = C.RN_RDMA_CM_EVENT_ADDR_RESOLVED
	addrFailed      EventKind = C.RN_RDMA_CM_EVENT_ADDR_ERROR
	routeResolved   EventKind = C.RN_RDMA_CM_EVENT_ROUTE_RESOLVED
	routeFailed     EventKind = C.RN_RDMA_CM_EVENT_ROUTE_ERROR
	connectRequest  EventKind = C.RN_RDMA_CM_EVENT_CONNECT_REQUEST
	connectFailed   EventKind = C.RN_RDMA_CM_EVENT_CONNECT_ERROR
	rejected        EventKind = C.RN_RDMA_CM_EVENT_REJECTED
	disconnected    EventKind = C.RN_RDMA_CM_EVENT_DISCONNECTED
	deviceRemoval   EventKind = C.RN_RDMA_CM_EVENT_DEVICE_REMOVAL
	addressChange   EventKind = C.RN_RDMA_CM_EVENT_ADDR_CHANGE
	multicastJoined EventKind = C.RN_RDMA_CM_EVENT_MULTICAST_JOIN
	multicastFailed EventKind = C.RN_RDMA_CM_EVENT_MULTICAST_ERROR
)

// decodeEvent copies an event, and returns the id that it is for.
func decodeEvent(event *C.struct_rn_rdma_cm_event) (e Event, id cmID) {
	e = Event{Kind: EventKind(event.event), Status: int(event.status)}
	id = event.id
	switch e.Kind {
	case connectRequest:
		e.request, id = event.id, event.listen_id
		e.Private = privateOf(event)
	case ConnectResponse, Established, rejected:
		e.Private = privateOf(event)
	}
	if PortSpace(id.ps) == UDP {
		switch e.Kind {
		case Established, multicastJoined:
			ud := C.rn_ud_param(event)
			e.Service = Service{ud.ah_attr, uint32(ud.qp_num)}
		case Unreachable: // perhaps a rejection by the receiver
			e.Private = privateOf(event)
		}
	}
	return e, id
}

// privateOf copies the private data, which the acknowledgement of the event frees.
func privateOf(event *C.struct_rn_rdma_cm_event) []byte {
	return C.GoBytes(unsafe.Pointer(event.conn.private_data), C.int(event.conn.private_data_len))
}

// Err is the error of an event that ends a handshake, or a request for datagrams; nil if it does
// not. A rejection is a *[fabric.RejectError].
func (e Event) Err() error {
	switch e.Kind {
	case rejected:
		return &fabric.RejectError{Reason: e.Status, Private: e.Private}
	case Unreachable:
		if e.Status > 0 { // of an SIDR REP: there is no listener, or it has rejected
			return &fabric.RejectError{Reason: fabric.RejectNoListener, Private: e.Private}
		}
		if syscall.Errno(-e.Status) == syscall.ETIMEDOUT {
			return os.NewSyscallError("rdma_connect", syscall.ETIMEDOUT)
		}
		return os.NewSyscallError("rdma_connect", syscall.EHOSTUNREACH)
	case disconnected:
		return fmt.Errorf("during the handshake: %w", fabric.ErrDisconnected)
	case deviceRemoval:
		return fabric.ErrDeviceRemoved
	case connectFailed, addrFailed:
		if e.Status < 0 {
			return os.NewSyscallError("rdma_connect", syscall.Errno(-e.Status))
		}
		return fmt.Errorf("rdma_connect: event %d, status %d: %w", e.Kind, e.Status, syscall.ECONNABORTED)
	}
	return nil
}
