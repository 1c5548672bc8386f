//go:build linux && cgo

package verbs

// A queue pair of type UD, and its memory. What it receives is in datagramreceive.go,
// what it sends in datagramsend.go.
//
// What arrives lies in slots of registered memory, each with room for the longest
// datagram and the device's header, until Receive copies it; what is to be sent is
// copied to slots of its own. Sends and receives have a completion queue each, because
// different goroutines poll them.

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
)

const (
	// datagramSends is the maximum depth of the send queue, and sendBatch the maximum
	// number of sends that are posted at once.
	datagramSends = 128
	sendBatch     = 64
)

// datagramQueue is a queue pair of type UD.
type datagramQueue struct {
	d *datagrams
	queueName
	queueReceives
	queueSends
	member    *membership // nil if it is not a group's; guarded by datagrams.making, until it is removed from d
	memory    budget.Account
	listening sync.WaitGroup // listen
	failed    atomic.Bool
	closing   atomic.Bool

	handling sync.Mutex // held by setAddressHandle and close; locked before receiving and sending

	// Guarded by datagrams.mu, until it is removed from d.
	used     bool      // senders may know it, or handles send by it
	watchers []watcher // the oldest first
}

// queueName is what identifies a queue pair, and what senders need to know of it.
type queueName struct {
	number uint64         // unique in this process
	local  netip.Addr     // of its port
	group  netip.AddrPort // it receives from this group alone; not valid: from senders that resolve local
	qpNum  C.uint32_t
	key    uint32 // Q_Key
	zone   string // of the port's interface
	mtu    int
}

var datagramQueues atomic.Uint64 // made so far

// newDatagramQueue returns a queue pair, with its receives posted, at the port that has
// an address. If m is not nil, the queue pair is for m's group alone, and m ends with
// it, or with an error.
func newDatagramQueue(d *datagrams, local netip.Addr, m *membership, recvs int) (*datagramQueue, error) {
	q := &datagramQueue{
		d:          d,
		queueName:  queueName{number: datagramQueues.Add(1), local: local},
		queueSends: queueSends{handles: make(map[*addressHandle]struct{})},
		member:     m,
		memory:     budget.Account{Budget: budget.Process, Locked: true},
	}
	if m != nil {
		q.group, q.used = m.group, true
	}
	if err := q.open(recvs); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

func (q *datagramQueue) open(recvs int) error {
	if err := q.bind(); err != nil {
		return err
	}
	e := q.e
	wanted := datagramSends
	q.key = randomKey()
	if q.group.IsValid() {
		wanted, q.key = 1, groupKey(q.group.Port())
	}
	sends, recvs := e.device.clamp(wanted, recvs)
	q.depth = sends
	q.stride = slotStride(grhSize + q.mtu)
	memory := fabric.Pages(recvs*q.stride) + fabric.Pages(sends*q.stride)
	if err := q.memory.Reserve(memory + fabric.DeviceQueues(sends, recvs)); err != nil {
		return err
	}
	if err := q.createQueues(sends, recvs); err != nil {
		return err
	}
	if err := q.createMemory(sends, recvs); err != nil {
		return err
	}
	if rc := C.rn_qp_datagrams(e.id, e.qp, C.uint32_t(q.key)); rc != 0 {
		return e.device.deviceError("ibv_modify_qp to RTS", rc)
	}
	if rc := C.rn_post_recv(handle(e.queue), C.int(recvs)); rc != 0 {
		return e.device.deviceError("ibv_post_recv", rc)
	}
	if q.member != nil {
		return q.member.attach(e)
	}
	return nil
}

// isAt reports whether the queue pair is at the port of an endpoint.
func (q *datagramQueue) isAt(e *endpoint) bool {
	return q.e.id.verbs == e.id.verbs && q.e.id.port_num == e.id.port_num
}

// bind opens the device and reads the attributes of its port.
func (q *datagramQueue) bind() error {
	var err error
	if q.e, err = q.d.rdma.bindTo(q.local); err != nil {
		return err
	}
	if err := q.e.openDevice(); err != nil {
		return err
	}
	attr, err := q.e.queryPort()
	if err != nil {
		return err
	}
	if attr.link_layer != C.RN_IBV_LINK_LAYER_ETHERNET {
		return fmt.Errorf("datagrams over %s, which only RoCE has: %w", q.e.transport(), errors.ErrUnsupported)
	}
	q.mtu = mtuBytes(uint32(attr.active_mtu))
	q.zone = interfaceOf(filepath.Join(sysInfiniband, deviceName(q.e.id), "ports", strconv.Itoa(q.e.port)), q.local)
	return nil
}

// bindTo makes an endpoint that is bound to the port with an address.
func (f rdma) bindTo(local netip.Addr) (*endpoint, error) {
	id, err := f.bindToPort(local)
	if err != nil {
		return nil, err
	}
	e := newEndpoint(f, id)
	e.local = netip.AddrPortFrom(local, 0)
	f.register(id, e)
	return e, nil
}

// mtuBytes converts an ibv_mtu to bytes: 1 is 256 bytes, and each is twice the one
// before.
func mtuBytes(mtu uint32) int { return 128 << min(mtu, 5) }

// interfaceOf is the network interface with an address, among those of a port, or "": each
// VLAN is one, with GIDs of its own.
func interfaceOf(port string, a netip.Addr) string {
	if a.Zone() != "" {
		return a.Zone()
	}
	gids, _ := os.ReadDir(filepath.Join(port, "gids"))
	for _, gid := range gids {
		text, _ := os.ReadFile(filepath.Join(port, "gids", gid.Name()))
		if own, err := netip.ParseAddr(strings.TrimSpace(string(text))); err == nil && own.Unmap() == a {
			name, _ := os.ReadFile(filepath.Join(port, "gid_attrs/ndevs", gid.Name()))
			return strings.TrimSpace(string(name))
		}
	}
	return ""
}

// randomKey is a random Q_Key of those that any sender may use: without the most
// significant bit (InfiniBand specification, 10.2.5).
func randomKey() uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		if key := binary.BigEndian.Uint32(b[:]) &^ (1 << 31); key != 0 {
			return key
		}
	}
}

// createQueues makes the completion queues and the queue pair.
func (q *datagramQueue) createQueues(sends, recvs int) error {
	e := q.e
	if err := e.createCompletionQueue(recvs); err != nil {
		return err
	}
	if rc := C.rn_create_cq(e.id.verbs, C.int(sends), nil, 0, &q.sendCQ); rc != 0 {
		return e.device.memoryError("ibv_create_cq", rc, sends*int(unsafe.Sizeof(C.struct_rn_ibv_wc{})))
	}
	if err := e.createQueuePair(C.RN_IBV_QPT_UD, q.sendCQ, sends, recvs); err != nil {
		return err
	}
	q.qpNum = e.qp.qp_num
	e.device.attach(e)
	return nil
}

// createMemory makes the slots, and the work requests that name them.
func (q *datagramQueue) createMemory(sends, recvs int) error {
	e := q.e
	m, err := e.register(recvs*q.stride, fabric.LocalWrite)
	if err != nil {
		return err
	}
	q.slots = m.bytes
	polls := min(pollBatch, max(1, recvs/4)) // receives are posted again when all that were polled have been taken
	e.queue = C.rn_queue_new(e.qp, e.cq, C.int(polls), 0, C.int(recvs), 0,
		unsafe.Pointer(unsafe.SliceData(m.bytes)), C.uint32_t(q.stride), C.uint32_t(grhSize+q.mtu), m.mr.lkey)
	if e.queue == nil {
		return os.NewSyscallError("calloc", syscall.ENOMEM)
	}
	e.wc = unsafe.Slice(e.queue.wc, polls)

	if q.sendMR, err = e.register(sends*q.stride, fabric.LocalWrite); err != nil {
		return err
	}
	q.sends = C.rn_queue_new(e.qp, q.sendCQ, sendBatch, C.int(sendBatch), 0, 0, nil, 0, 0, 0)
	if q.sends == nil {
		return os.NewSyscallError("calloc", syscall.ENOMEM)
	}
	e.send, e.sge = unsafe.Slice(q.sends.send, sendBatch), unsafe.Slice(q.sends.send_sge, sendBatch)
	return nil
}

// close releases everything. It is called once, when the queue pair is not in the
// endpoint.
func (q *datagramQueue) close() {
	q.closing.Store(true)
	if q.e != nil {
		q.e.Wake()
		q.listening.Wait()
	}
	q.handling.Lock()
	defer q.handling.Unlock()
	q.receiving.Lock()
	defer q.receiving.Unlock()
	q.sending.Lock()
	defer q.sending.Unlock()
	if q.member != nil {
		q.member.end()
	}
	if q.e == nil {
		return
	}
	e := q.e
	if e.qp != nil {
		e.device.detach(e)
		C.rn_destroy_qp(e.qp)
		e.qp = nil
	}
	for h := range q.handles {
		q.destroy(h)
	}
	if q.sends != nil {
		C.free(unsafe.Pointer(q.sends))
		q.sends, e.send, e.sge = nil, nil, nil
	}
	if q.sendCQ != nil {
		C.rn_destroy_cq(q.sendCQ)
		q.sendCQ = nil
	}
	_ = e.Close() // an error means that the device is gone
	q.memory.Release(q.memory.Bytes())
}

// maxMessage is the maximum number of bytes of a datagram, behind its header.
func (q *datagramQueue) maxMessage() int { return q.mtu - fabric.HeaderSize }
