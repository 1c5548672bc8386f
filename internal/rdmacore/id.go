//go:build linux && cgo

package rdmacore

// Identifiers of the connection manager.

// #include "shim.h"
import "C"

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

// ID is an identifier of the connection manager, an rdma_cm_id: what a socket is to TCP. It is
// bound to a port of a device, or has a route to a remote address, or is a request that has arrived.
//
// Its methods are called by one goroutine at a time, and return net.ErrClosed after Close; Events
// may be received by another.
type ID struct {
	manager *manager
	config  Config
	cm      cmID // nil once it is closed
	local   netip.AddrPort
	remote  netip.AddrPort
	private []byte // of a request

	// events has room for more than the connection manager sends for one id; Receive drops
	// an event that does not fit.
	events chan Event

	// Of the queue pair that is made on the ID: see QueuePair.Wait.
	device  *device // nil without one
	changes fabric.Changes
	sleeper atomic.Pointer[fabric.Sleeper] // of the completion channel, or nil
}

// newID makes an ID of an id that this side has made, or a request.
func (m CM) newID(cm cmID) *ID {
	id := &ID{manager: m.manager, config: m.config, cm: cm, events: make(chan Event, 16)}
	m.register(cm, id)
	return id
}

// create makes an id. It sets the traffic class first: the kernel reads it when it
// resolves the address, and a connection to a listener copies it when it begins.
func (m CM) create() (*ID, error) {
	var cm cmID
	if rc := C.rn_create_id(m.channel, C.enum_rn_rdma_port_space(m.config.Space), &cm); rc != 0 {
		return nil, syscallError("rdma_create_id", rc)
	}
	if class, ok := m.config.class(); ok {
		if rc := C.rn_set_traffic_class(cm, C.uint8_t(class)); rc != 0 {
			C.rn_destroy_id(cm)
			return nil, syscallError("rdma_set_option (RDMA_OPTION_ID_TOS)", rc)
		}
	}
	return m.newID(cm), nil
}

// The port spaces are those of abi.h.
var _, _ = [1]struct{}{}[TCP-C.RN_RDMA_PS_TCP], [1]struct{}{}[UDP-C.RN_RDMA_PS_UDP]

// bind makes an ID that is bound to an address of this host. With v6only unset, one of IPv6 stands
// for IPv4, too.
func (m CM) bind(local netip.AddrPort, v6only bool) (*ID, error) {
	s, err := toSockaddr(local)
	if err != nil {
		return nil, err
	}
	id, err := m.create()
	if err != nil {
		return nil, err
	}
	alone := C.int(0)
	if v6only {
		alone = 1
	}
	if rc := C.rn_bind(id.cm, &s, alone); rc != 0 {
		err = addrError("rdma_bind_addr", syscall.Errno(rc), local.Addr())
	} else {
		err = refuseIWARP(id.cm)
	}
	if err != nil {
		_ = id.Close()
		return nil, err
	}
	return id, nil
}

// Bind returns an ID that is bound to the port of a device that has an address. If none has it, the
// error wraps errors.ErrUnsupported and ENODEV.
func (m CM) Bind(local netip.Addr) (*ID, error) {
	id, err := m.bind(netip.AddrPortFrom(local, 0), false)
	if err != nil {
		return nil, err
	}
	if id.cm.verbs == nil {
		_ = id.Close()
		return nil, addrError("rdma_bind_addr", syscall.ENODEV, local)
	}
	id.local = netip.AddrPortFrom(local, 0)
	return id, nil
}

// LocalAddr returns the address of this host; with port 0 after Bind.
func (id *ID) LocalAddr() netip.AddrPort { return id.local }

// RemoteAddr returns the address that was resolved, or from which a request has come.
func (id *ID) RemoteAddr() netip.AddrPort { return id.remote }

// Private returns the private data of a request, possibly padded with zeros.
func (id *ID) Private() []byte { return id.private }

// SamePort reports whether two IDs, neither of which is closed, are bound to the same port of a
// device.
func (id *ID) SamePort(other *ID) bool {
	return id.cm.verbs == other.cm.verbs && id.cm.port_num == other.cm.port_num
}

// Transport returns the name of the transport of the ID's port, as in [fabric.Limits]: InfiniBand or
// RoCE.
func (id *ID) Transport() string {
	layer, _ := os.ReadFile(filepath.Join(id.portFolder(), "link_layer"))
	if strings.TrimSpace(string(layer)) == "InfiniBand" {
		return "InfiniBand"
	}
	return "RoCE"
}

// portFolder is the folder of the ID's port in /sys.
func (id *ID) portFolder() string {
	return filepath.Join(sysInfiniband, deviceName(id.cm), "ports", strconv.Itoa(int(id.cm.port_num)))
}

// Receive implements [receiver]. It never waits.
func (id *ID) Receive(ev Event) {
	select {
	case id.events <- ev:
	default:
	}
	switch ev.Kind {
	case disconnected,
		rejected: // behind the peer's answer: it gave up before the confirmation arrived
		id.notify(fabric.ErrDisconnected, fabric.ErrDisconnected)
	case deviceRemoval:
		id.notify(fabric.ErrDeviceRemoved, fabric.ErrDeviceRemoved)
	case addressChange: // cma_netdev_change, in the kernel's drivers/infiniband/core/cma.c
		id.notify(fabric.ErrAddressChanged, fabric.ErrAddressChanged)
	case Unreachable: // cma_netevent_callback there; or the peer has not answered, and the handshake fails
		id.notify(fabric.ErrPathLost, fabric.ErrPathLost)
	}
}

// notify has QueuePair.Wait return err. Of a kind that means that the connection is lost, Wait
// returns only the first.
func (id *ID) notify(kind, err error) {
	id.changes.Add(kind, err)
	id.wake()
}

func (id *ID) wake() {
	if s := id.sleeper.Load(); s != nil { // without one, nothing waits
		s.Wake()
	}
}

// Events returns the channel of the ID's events, of which each is received once.
func (id *ID) Events() <-chan Event { return id.events }

// Await returns the next event of the kinds wanted, or an error if another event ended
// the handshake or ctx ended first.
func (id *ID) Await(ctx context.Context, wanted ...EventKind) (Event, error) {
	for {
		select {
		case ev := <-id.events:
			if slices.Contains(wanted, ev.Kind) {
				return ev, nil
			}
			if err := ev.Err(); err != nil {
				return ev, err
			}
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Connect sends a connection request for a queue pair with the number, or in the port space UDP an
// SIDR REQ, for which that and the retries mean nothing. Await returns the answer. The retries are
// those that the peer's queue pair makes.
func (id *ID) Connect(queuePair uint32, retries, rnrRetries uint8, private []byte) error {
	if id.cm == nil {
		return net.ErrClosed
	}
	data, n := privateData(private)
	if rc := C.rn_connect(id.cm, C.uint32_t(queuePair), C.uint8_t(retries), C.uint8_t(rnrRetries), data, n); rc != 0 {
		return id.device.error("rdma_connect", rc)
	}
	return nil
}

// Establish confirms the peer's answer to Connect.
func (id *ID) Establish() error {
	return id.call("rdma_establish", func() C.int { return C.rn_establish(id.cm) })
}

// Accept answers a request with the number of a queue pair. Behind it, Await returns Established
// when the peer has confirmed; not in the port space UDP.
func (id *ID) Accept(queuePair uint32, private []byte) error {
	data, n := privateData(private)
	return id.call("rdma_accept", func() C.int { return C.rn_accept(id.cm, C.uint32_t(queuePair), data, n) })
}

// NotifyEstablished tells the connection manager that the peer has sent a message behind Accept, which
// confirms as well as its confirmation, which may be late or lost.
func (id *ID) NotifyEstablished() { C.rn_notify_established(id.cm) }

// Reject refuses a request, or the peer's answer.
func (id *ID) Reject(private []byte) error {
	data, n := privateData(private)
	return id.call("rdma_reject", func() C.int { return C.rn_reject(id.cm, data, n) })
}

// Disconnect ends the connection. The error is EINVAL if there is none, or none any more.
func (id *ID) Disconnect() error {
	return id.call("rdma_disconnect", func() C.int { return C.rn_disconnect(id.cm) })
}

// call calls a function of the connection manager.
func (id *ID) call(name string, f func() C.int) error {
	if id.cm == nil {
		return net.ErrClosed
	}
	if rc := f(); rc != 0 {
		return id.device.error(name, rc)
	}
	return nil
}

// Close destroys the ID, which rejects a request that has not been answered. It may be called
// again.
func (id *ID) Close() error {
	if id.cm == nil {
		return nil
	}
	cm := id.cm
	id.cm = nil
	return id.manager.destroy(cm)
}

func privateData(b []byte) (unsafe.Pointer, C.uint8_t) {
	return unsafe.Pointer(unsafe.SliceData(b)), C.uint8_t(len(b))
}
