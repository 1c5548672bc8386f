//go:build linux && cgo

package verbs

// What an endpoint is made of, how it is made and how it is destroyed.

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

const (
	// minRNRTimer is the code for 0.64 ms (InfiniBand specification, 9.7.5.2.8,
	// table 45). rdma_cm would leave 0, which is 655 ms.
	minRNRTimer = 12

	// rnrRetries, 7, makes the device repeat without end a send that found no receive
	// posted (InfiniBand specification, 9.7.5.2.8). Ringnet never sends without a
	// receive to take it, but the peer's device may be slow to see one that has just
	// been posted, and with fewer retries that alone would end the connection. The
	// devices' counters show how often it has happened. If a peer posts no receives, the
	// keepalive probe, which waits behind such a send, ends the connection.
	rnrRetries = 7

	// spin is the number of polls worth making before waiting for an event: at
	// 50 to 100 ns each some tens of microseconds, a few times what sleeping and
	// being woken costs.
	spin = 500
)

// endpoint implements [fabric.Endpoint].
type endpoint struct {
	manager   *manager
	config    Config
	id        cmID
	contacted bool // the peer's request or answer has arrived
	local     netip.AddrPort
	remote    netip.AddrPort
	private   []byte // of the peer's request

	// handshake carries events from the event loop to await. It has room for more than
	// the connection manager sends for one id; receive drops an event that does not fit.
	handshake chan cmEvent
	look      <-chan time.Time // set by Accept: see lookAgain

	objects
	calls
	in  inbox // Sends: see mailbox.go
	out outbox
	sleep
	changes fabric.Changes
}

// objects are what Open makes, in this order.
type objects struct {
	options fabric.Options
	device  *device
	port    int
	pd      *C.struct_rn_ibv_pd
	channel *C.struct_rn_ibv_comp_channel
	cq      *C.struct_rn_ibv_cq
	qp      *C.struct_rn_ibv_qp
	mu      sync.Mutex // guards memory, until Close
	memory  []*memory
}

// calls is C memory for what is posted and polled, and its arrays as Go sees them.
type calls struct {
	queue      *C.struct_rn_queue
	send       []C.struct_rn_ibv_send_wr
	sge        []C.struct_rn_ibv_sge
	wc         []C.struct_rn_ibv_wc
	inline     []byte // registered: see inlineSlot
	inlineKey  C.uint32_t
	inlineSize int
	posted     uint64 // work requests
}

// sleep is what Wait and Wake need: see wait.go.
type sleep struct {
	sleeper    atomic.Pointer[fabric.Sleeper] // of the completion channel, or nil before Open
	take       func(uintptr) bool             // takeEvent
	armed      atomic.Bool                    // Arm has been called, and Wait is to return for the event
	deviceGone bool                           // the descriptor will not become readable again
}

func newEndpoint(f rdma, id cmID) *endpoint {
	return &endpoint{
		manager:   f.manager,
		config:    f.config,
		id:        id,
		handshake: make(chan cmEvent, 16),
	}
}

func (e *endpoint) LocalAddr() netip.AddrPort  { return e.local }
func (e *endpoint) RemoteAddr() netip.AddrPort { return e.remote }
func (e *endpoint) Private() []byte            { return e.private }

func (e *endpoint) Open(o fabric.Options) (fabric.Limits, error) {
	if o.SendQueue < 1 || o.RecvQueue < 1 || o.RecvSize < 1 || o.Sends < 1 || o.Retries < 0 || o.Retries > 7 {
		return fabric.Limits{}, fmt.Errorf("queue pair options %+v: %w", o, syscall.EINVAL)
	}
	if e.id == nil {
		return fabric.Limits{}, net.ErrClosed
	}
	if e.id.verbs == nil || e.device != nil {
		return fabric.Limits{}, fmt.Errorf("open: %w", syscall.EINVAL)
	}
	if err := e.openDevice(); err != nil {
		return fabric.Limits{}, err
	}
	o.SendQueue, o.RecvQueue = e.device.clamp(o.SendQueue, o.RecvQueue)
	e.options = o
	if err := e.createQueues(); err != nil {
		return fabric.Limits{}, err
	}
	e.device.attach(e)
	if rc := C.rn_qp_init(e.id, e.qp, C.RN_IBV_ACCESS_LOCAL_WRITE|C.RN_IBV_ACCESS_REMOTE_WRITE); rc != 0 {
		return fabric.Limits{}, e.stateError("ibv_modify_qp to INIT", rc)
	}
	if err := e.createMailbox(); err != nil {
		return fabric.Limits{}, err
	}
	if err := e.createQueue(); err != nil {
		return fabric.Limits{}, err
	}
	return fabric.Limits{
		SendQueue: e.options.SendQueue,
		RecvQueue: e.options.RecvQueue,
		Inline:    e.inlineSize,
		Spin:      spin,
		Transport: e.transport(),
	}, nil
}

// openDevice makes what does not depend on the queues.
func (e *endpoint) openDevice() (err error) {
	if e.device, err = e.manager.devices.acquire(e.id.verbs); err != nil {
		return err
	}
	e.port = int(e.id.port_num)
	if rc := C.rn_alloc_pd(e.id.verbs, &e.pd); rc != 0 {
		return e.device.deviceError("ibv_alloc_pd", rc)
	}
	return e.openChannel()
}

// queryPort returns the attributes of the device's port.
func (e *endpoint) queryPort() (attr C.struct_rn_ibv_port_attr, err error) {
	if rc := C.rn_query_port(e.id.verbs, e.id.port_num, &attr); rc != 0 {
		err = e.device.deviceError("ibv_query_port", rc)
	}
	return attr, err
}

// transport is the name of the device's transport, as in [fabric.Limits].
func (e *endpoint) transport() string {
	layer, _ := os.ReadFile(filepath.Join(sysInfiniband, deviceName(e.id), "ports", strconv.Itoa(e.port), "link_layer"))
	if strings.TrimSpace(string(layer)) == "InfiniBand" {
		return "InfiniBand"
	}
	return "RoCE"
}

// recvBit in wr_id marks a receive: a failed completion has no other valid field that
// tells a receive from a send.
const recvBit = 1 << 63

// pollBatch is the maximum number of completions that one Poll takes.
const pollBatch = 64

// createQueue allocates the data path. Receives have no buffers: see mailbox.go.
func (e *endpoint) createQueue() error {
	sends, recvs := e.options.SendQueue, e.options.RecvQueue
	wcs := min(pollBatch, sends+recvs)
	q := C.rn_queue_new(e.qp, e.cq, C.int(wcs), C.int(sends), C.int(recvs), recvBit, nil, 0, 0, 0)
	if q == nil {
		return os.NewSyscallError("calloc", syscall.ENOMEM)
	}
	e.queue = q
	e.wc = unsafe.Slice(q.wc, wcs)
	e.send = unsafe.Slice(q.send, sends)
	e.sge = unsafe.Slice(q.send_sge, sends)
	if e.inlineSize == 0 {
		return nil
	}
	m, err := e.register(sends*e.inlineSize, fabric.LocalWrite)
	if err != nil {
		return err
	}
	e.inline, e.inlineKey = m.bytes, m.mr.lkey
	return nil
}

// ackTimeout is the smallest n from 1 to 31 with 4.096 µs * 2^n >= d, or 31 if there is
// none. 0 would mean to wait without end.
func ackTimeout(d time.Duration) uint8 {
	const unit = 4096 * time.Nanosecond
	units := max((d+unit-1)/unit, 2)
	return uint8(min(bits.Len64(uint64(units-1)), 31))
}

// Close implements [fabric.Endpoint].
func (e *endpoint) Close() error {
	var first error
	check := func(call string, rc C.int) {
		if rc != 0 && first == nil {
			first = e.device.deviceError(call, rc)
		}
	}
	if e.qp != nil {
		e.device.detach(e)
		check("ibv_destroy_qp", C.rn_destroy_qp(e.qp))
		e.qp = nil
	}
	if e.queue != nil {
		C.free(unsafe.Pointer(e.queue))
		e.queue, e.send, e.sge, e.wc, e.inline = nil, nil, nil, nil, nil
	}
	if e.cq != nil {
		check("ibv_destroy_cq", C.rn_destroy_cq(e.cq))
		e.cq = nil
	}
	if e.channel != nil {
		check("ibv_destroy_comp_channel", e.closeChannel())
		e.channel = nil
	}
	for _, m := range e.memory {
		if err := m.release(); err != nil && first == nil {
			first = err
		}
	}
	e.memory = nil
	if e.pd != nil {
		check("ibv_dealloc_pd", C.rn_dealloc_pd(e.pd))
		e.pd = nil
	}
	if e.device != nil {
		e.device.release()
		e.device = nil
	}
	if e.id != nil {
		if err := e.manager.destroyID(e.id); err != nil && first == nil {
			first = err
		}
		e.id = nil
	}
	return first
}
