//go:build linux && cgo

package rdmacore

// What a queue pair is made of, how it is made and how it is destroyed.

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/numa"
)

// Type is the type of a queue pair.
type Type uint32

// The types: RC is a reliable connection, UD sends unreliable datagrams.
const (
	RC Type = C.RN_IBV_QPT_RC
	UD Type = C.RN_IBV_QPT_UD
)

// QueuePair is a queue pair with its protection domain, completion channel, completion queues and
// registered memory. It is made in this order, by one goroutine: OpenDevice, CreateCompletionQueue,
// Create, and NewQueue. Close undoes whatever of that there is. Until Create there is nothing but
// memory in it.
//
// The zero QueuePair is one for its ID. Register may be called by any number of goroutines, Wake by
// anyone at any time, also after Close, and Wait by one goroutine, while others use the Queues.
type QueuePair struct {
	ID    *ID
	Queue *Queue // of the completions that Wait waits for; nil until NewQueue has made it, and after Close

	device  *device
	port    int
	pd      *C.struct_rn_ibv_pd
	channel *C.struct_rn_ibv_comp_channel
	cq      *C.struct_rn_ibv_cq
	sendCQ  *C.struct_rn_ibv_cq // of sends, if they have another one: see CreateSendCompletionQueue
	qp      *C.struct_rn_ibv_qp
	sends   *Queue // of sendCQ
	inline  int
	vector  int // of cq

	mu     sync.Mutex // guards memory, until Close
	memory []*Memory

	sleep
}

// sleep is what Wait and Arm need: see wait.go.
type sleep struct {
	take       func(uintptr) bool // takeEvent: a method value made for each Wait would be an allocation
	armed      atomic.Bool        // Arm has been called, and Wait is to return for the event
	deviceGone bool               // the descriptor will not become readable again
}

// IsOpen reports whether OpenDevice has opened the device.
func (q *QueuePair) IsOpen() bool { return q.device != nil }

// OpenDevice makes what does not depend on the queues, at the device that the ID is bound to. The
// error is net.ErrClosed after Close, EINVAL if the ID is bound to no device, or it has been
// opened, and errors.ErrUnsupported if that is another device than has its address.
func (q *QueuePair) OpenDevice() (err error) {
	cm := q.ID.cm
	if cm == nil {
		return net.ErrClosed
	}
	if cm.verbs == nil || q.device != nil {
		return fmt.Errorf("open: %w", syscall.EINVAL)
	}
	if err = q.ID.manager.devices.checkDevice(cm); err != nil {
		return err
	}
	if q.device, err = q.ID.manager.devices.acquire(cm.verbs); err != nil {
		return err
	}
	q.ID.device = q.device
	q.port = int(cm.port_num)
	if rc := C.rn_alloc_pd(cm.verbs, &q.pd); rc != 0 {
		return q.device.error("ibv_alloc_pd", rc)
	}
	return q.openChannel()
}

// Port is what a device tells of one of its ports.
type Port struct {
	MTU      uint8 // an ibv_mtu: 1 is 256 bytes, and each is twice the one before
	Ethernet bool
}

// QueryPort asks the device about the port that the ID is bound to.
func (q *QueuePair) QueryPort() (Port, error) {
	var attr C.struct_rn_ibv_port_attr
	if rc := C.rn_query_port(q.ID.cm.verbs, q.ID.cm.port_num, &attr); rc != 0 {
		return Port{}, q.device.error("ibv_query_port", rc)
	}
	return Port{uint8(attr.active_mtu), attr.link_layer == C.RN_IBV_LINK_LAYER_ETHERNET}, nil
}

// Clamp reduces the depths of the queues to the device's limits.
func (q *QueuePair) Clamp(sends, recvs int) (int, int) { return q.device.clamp(sends, recvs) }

// CreateCompletionQueue makes the completion queue whose events Wait waits for, unless an earlier call
// has made one, which is deeper.
func (q *QueuePair) CreateCompletionQueue(depth int) error {
	if q.cq != nil {
		return nil
	}
	wanted, _ := numa.ParseList(q.ID.config.Vectors) // valid
	q.vector = q.device.nextVector(wanted)
	return q.createCQ(depth, q.channel, q.vector, &q.cq)
}

// CreateSendCompletionQueue makes another completion queue for sends, for those who poll what they
// have sent in other goroutines than what they receive. It makes no events.
func (q *QueuePair) CreateSendCompletionQueue(depth int) error {
	return q.createCQ(depth, nil, 0, &q.sendCQ)
}

func (q *QueuePair) createCQ(depth int, channel *C.struct_rn_ibv_comp_channel, vector int, cq **C.struct_rn_ibv_cq) error {
	var made *C.struct_rn_ibv_cq
	if rc := C.rn_create_cq(q.ID.cm.verbs, C.int(depth), channel, C.int(vector), &made); rc != 0 {
		return q.device.memoryError("ibv_create_cq", rc, depth*int(unsafe.Sizeof(C.struct_rn_ibv_wc{})))
	}
	*cq = made
	return nil
}

// Create makes the queue pair, with as much inline data as the device takes.
//
// A provider that cannot make what it is asked for fails with any errno, or with none, and does not
// tell its limit. If no try succeeds, the error is that of a queue pair without inline data.
func (q *QueuePair) Create(t Type, sends, recvs int) error {
	sendCQ := q.cq
	if q.sendCQ != nil {
		sendCQ = q.sendCQ
	}
	writesOnly := C.int(0)
	if t == RC && q.device.lean {
		writesOnly = 1
	}
	var err error
	s, isLimit := shape{t, sends, recvs, q.device.mostInline(q.ID.config.Inline)}, true
	for _, inline := range q.device.sizesFor(s) {
		wanted := C.struct_rn_ibv_qp_cap{
			max_send_wr:     C.uint32_t(sends),
			max_recv_wr:     C.uint32_t(recvs),
			max_send_sge:    1,
			max_recv_sge:    1,
			max_inline_data: C.uint32_t(inline),
		}
		rc := C.rn_create_qp(q.pd, C.uint(t), writesOnly, sendCQ, q.cq, &wanted, &q.qp)
		if rc == 0 {
			q.inline = min(int(wanted.max_inline_data), inline) // less may be granted, and what is more was not asked for
			if isLimit {
				q.device.grants(s, inline)
			}
			q.device.attach(q)
			return nil
		}
		if err = q.device.memoryError("ibv_create_qp", rc, sends*64+recvs*16); errors.Is(err, fabric.ErrDeviceRemoved) {
			return err
		}
		isLimit = isLimit && !IsShortage(err)
	}
	return err
}

// Inline returns how many bytes a work request may carry by itself.
func (q *QueuePair) Inline() int { return q.inline }

// Number returns the number that names the queue pair to others. It is 0 before Create.
func (q *QueuePair) Number() uint32 {
	if q.qp == nil {
		return 0
	}
	return uint32(q.qp.qp_num)
}

// ToInit moves a queue pair of type RC to INIT: receives may be posted.
func (q *QueuePair) ToInit() error {
	if rc := C.rn_qp_init(q.ID.cm, q.qp, C.uint(RemoteWrite)); rc != 0 {
		return q.device.error("ibv_modify_qp to INIT", rc)
	}
	return nil
}

// OfferOptions has Connect tell the peer what options of the card's vendor the queue pair knows (ECE,
// rdma_set_local_ece(3)). Where both ends know some, ToReadyToSend takes them.
func (q *QueuePair) OfferOptions() { C.rn_offer_options(q.ID.cm, q.qp) }

// VendorOptions returns the options that the queue pair knows, and from ToReadyToSend on has. 0: none.
func (q *QueuePair) VendorOptions() uint32 { return uint32(C.rn_vendor_options(q.qp)) }

// Retries are how a queue pair of type RC sends again.
type Retries struct {
	Timeout  uint8 // to wait 4.096 µs * 2^Timeout for an acknowledgement
	Count    uint8 // how often then, 7 at most
	RNRTimer uint8 // how long the peer is to wait that found no receive posted (InfiniBand specification, table 45)
	RNRCount uint8 // how often then; 7 is without end
}

// ToReadyToSend moves a queue pair of type RC from INIT through RTR to RTS, once the connection manager
// knows the peer. It sets the configured traffic class: rdma_cm's, on the side that accepts, is the
// dialer's. mtu is the longest that the caller allows, or 0 for any; it returns that of the queue pair.
// answers says that Accept is to follow.
func (q *QueuePair) ToReadyToSend(r Retries, mtu uint8, answers bool) (uint8, error) {
	class, will := C.int(-1), C.int(0)
	if answers {
		will = 1
	}
	if c, ok := q.ID.config.class(); ok {
		class = C.int(c)
	}
	m := C.uint8_t(mtu)
	rc := C.rn_qp_ready(q.ID.cm, q.qp, will, C.uint8_t(r.RNRTimer), C.uint8_t(r.Timeout), C.uint8_t(r.Count), C.uint8_t(r.RNRCount), class, &m)
	if rc != 0 {
		return 0, q.device.error("ibv_modify_qp to RTS", rc)
	}
	return uint8(m), nil
}

// ToError moves the queue pair to ERR, which flushes whatever is posted. The error is net.ErrClosed if
// there is no queue pair.
func (q *QueuePair) ToError() error {
	if q.qp == nil {
		return net.ErrClosed
	}
	if rc := C.rn_qp_error(q.qp); rc != 0 {
		return q.device.error("ibv_modify_qp to ERR", rc)
	}
	return nil
}

// Destroy destroys the queue pair, but nothing else: from now on no work request is under way. Close
// does it, too.
func (q *QueuePair) Destroy() error {
	if q.qp == nil {
		return nil
	}
	q.device.detach(q)
	rc := C.rn_destroy_qp(q.qp)
	q.qp = nil
	if rc != 0 {
		return q.device.error("ibv_destroy_qp", rc)
	}
	return nil
}

// Close destroys all that was made, with the ID, whatever is there of it, and returns the first error.
// It may be called again. Only Wake may be running.
func (q *QueuePair) Close() error {
	first := q.Destroy()
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	check := func(call string, rc C.int) {
		if rc != 0 {
			keep(q.device.error(call, rc))
		}
	}
	q.Queue.free()
	q.sends.free()
	q.Queue, q.sends = nil, nil
	for _, cq := range []**C.struct_rn_ibv_cq{&q.sendCQ, &q.cq} {
		if *cq != nil {
			check("ibv_destroy_cq", C.rn_destroy_cq(*cq))
			*cq = nil
		}
	}
	if q.channel != nil {
		check("ibv_destroy_comp_channel", q.closeChannel())
		q.channel = nil
	}
	for _, m := range q.memory {
		keep(m.release())
	}
	q.memory = nil
	if q.pd != nil {
		check("ibv_dealloc_pd", C.rn_dealloc_pd(q.pd))
		q.pd = nil
	}
	if q.device != nil {
		q.device.release()
		q.device, q.ID.device = nil, nil
	}
	keep(q.ID.Close())
	return first
}

// openChannel makes the completion channel, whose descriptor the Sleeper owns.
func (q *QueuePair) openChannel() error {
	if rc := C.rn_create_comp_channel(q.ID.cm.verbs, &q.channel); rc != 0 {
		return q.device.error("ibv_create_comp_channel", rc)
	}
	fd := int(q.channel.fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	s, err := fabric.NewSleeper(fd, "ibv_comp_channel")
	q.ID.sleeper.Store(s)
	q.take = q.takeEvent
	return err
}

func (q *QueuePair) closeChannel() C.int {
	if s := q.ID.sleeper.Load(); s != nil {
		s.Close()
	}
	return C.rn_free_comp_channel(q.channel)
}
