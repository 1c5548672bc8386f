//go:build linux && cgo

package verbs

// A queue pair of type UD: its memory, what it sends and what it receives.
//
// What arrives lies in slots of registered memory, each with room for the longest
// datagram and the device's header, until Receive copies it; what is to be sent is copied
// to slots of its own. Sends and receives complete on completion queues of their own, for
// they are different goroutines'.

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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
)

const (
	// datagramSends is how many datagrams may wait for the device to send them, and
	// sendBatch how many of them are posted at once.
	datagramSends = 128
	sendBatch     = 64

	// sendWithin is how long they may wait: a device whose port is up, and that no
	// other has told to pause, takes microseconds.
	sendWithin = time.Second

	// maxWatchers is how many senders a queue pair tells that it has gone.
	maxWatchers = 1024

	// watchesWithin is how long a request is repeated: 16 times, every 4.096 s.
	watchesWithin = 70 * time.Second
)

// datagramQueue is one.
type datagramQueue struct {
	d      *datagrams
	number uint64         // of those of this process
	local  netip.Addr     // of its port
	group  netip.AddrPort // whose member it is, which does nothing else; invalid: it is none
	key    uint32         // Q_Key
	zone   string         // of the port's interface
	mtu    int

	// e has the queue pair, the completion queue of the receives, and their memory. It
	// sleeps until something arrives, and is told what becomes of the device.
	e      *endpoint
	slots  []byte // of receives
	stride int

	depth     int // of the send queue
	sendCQ    *C.struct_rn_ibv_cq
	sends     *C.struct_rn_queue
	sendMR    *memory
	inline    int
	memory    budget.Account
	listening chan struct{} // closed when nobody waits for arrivals any more

	failed  atomic.Bool
	closing atomic.Bool

	// Guarded by the endpoint's mu.
	used     bool        // somebody knows it
	watchers []watcher   // the oldest first
	member   *membership // nil if it is none

	receiving     sync.Mutex // is held by who looks at e.queue, and guards what follows
	polled, taken int        // completions in e.wc, and how many of them have been looked at

	sending      sync.Mutex // guards what follows
	posted, done uint64     // counts of sends
}

var datagramQueues atomic.Uint64 // how many there have been

// newDatagramQueue returns a queue pair, with its receives posted, at the port that has an
// address: for a group, if that is valid, of which it is yet to become a member.
func newDatagramQueue(d *datagrams, local netip.Addr, group netip.AddrPort, recvs int) (*datagramQueue, error) {
	q := &datagramQueue{
		d: d, number: datagramQueues.Add(1), local: local, group: group, used: group.IsValid(),
		memory: budget.Account{Budget: budget.Process, Locked: true},
	}
	if err := q.open(recvs); err != nil {
		q.close()
		return nil, err
	}
	q.listening = make(chan struct{})
	go q.listen()
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
	if rc := C.rn_alloc_pd(e.id.verbs, &e.pd); rc != 0 {
		return deviceError("ibv_alloc_pd", rc)
	}
	if err := e.openChannel(); err != nil {
		return err
	}
	if err := q.createQueuePair(sends, recvs); err != nil {
		return err
	}
	if err := q.createMemory(sends, recvs); err != nil {
		return err
	}
	if rc := C.rn_qp_datagrams(e.id, e.qp, C.uint32_t(q.key)); rc != 0 {
		return deviceError("ibv_modify_qp to RTS", rc)
	}
	if rc := C.rn_post_recv(e.queue, C.int(recvs)); rc != 0 {
		return deviceError("ibv_post_recv", rc)
	}
	return nil
}

// bind finds the port, and what it is like.
func (q *datagramQueue) bind() error {
	var err error
	if q.e, err = q.d.rdma.bindTo(q.local); err != nil {
		return err
	}
	id := q.e.id
	if q.e.device, err = q.e.manager.devices.acquire(id.verbs); err != nil {
		return err
	}
	q.e.port = int(id.port_num)
	var attr C.struct_rn_ibv_port_attr
	if rc := C.rn_query_port(id.verbs, id.port_num, &attr); rc != 0 {
		return deviceError("ibv_query_port", rc)
	}
	if iwarpOf(id) != nil || attr.link_layer != C.RN_IBV_LINK_LAYER_ETHERNET {
		return fmt.Errorf("datagrams over %s, which only RoCE has: %w", q.e.transport(), errors.ErrUnsupported)
	}
	q.mtu = mtuBytes(uint32(attr.active_mtu))
	q.zone = interfaceOf(C.GoString(&id.verbs.device.name[0]), q.e.port)
	return nil
}

// bindTo makes an endpoint at the port that has an address.
func (f rdma) bindTo(local netip.Addr) (*endpoint, error) {
	s, err := toSockaddr(netip.AddrPortFrom(local, 0))
	if err != nil {
		return nil, err
	}
	id, err := f.createID()
	if err != nil {
		return nil, err
	}
	e := newEndpoint(f, id)
	e.local = netip.AddrPortFrom(local, 0)
	f.register(id, e)
	if rc := C.rn_bind(id, &s, 0); rc != 0 {
		err = addrError("rdma_bind_addr", syscall.Errno(rc), local)
	} else if id.verbs == nil {
		err = addrError("rdma_bind_addr", syscall.ENODEV, local)
	}
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// mtuBytes is what an ibv_mtu means: 1 is 256 bytes, and each is twice the one before.
func mtuBytes(mtu uint32) int { return 128 << min(mtu, 5) }

// interfaceOf is the network interface of a port, or "".
func interfaceOf(device string, port int) string {
	name, _ := os.ReadFile(filepath.Join("/sys/class/infiniband", device, "ports", strconv.Itoa(port), "gid_attrs/ndevs/0"))
	return strings.TrimSpace(string(name))
}

// randomKey is a Q_Key, of those that any sender may use: without the most significant
// bit (InfiniBand specification, 10.2.5).
func randomKey() uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		if key := binary.BigEndian.Uint32(b[:]) &^ (1 << 31); key != 0 {
			return key
		}
	}
}

// createQueuePair makes the completion queues and the queue pair, with as much inline data
// as the device takes.
func (q *datagramQueue) createQueuePair(sends, recvs int) error {
	e := q.e
	if rc := C.rn_create_cq(e.id.verbs, C.int(recvs), e.channel, C.int(e.device.nextVector()), &e.cq); rc != 0 {
		return memoryError("ibv_create_cq", rc, recvs*int(unsafe.Sizeof(C.struct_rn_ibv_wc{})))
	}
	if rc := C.rn_create_cq(e.id.verbs, C.int(sends), nil, 0, &q.sendCQ); rc != 0 {
		return memoryError("ibv_create_cq", rc, sends*int(unsafe.Sizeof(C.struct_rn_ibv_wc{})))
	}
	var rc C.int
	for _, inline := range inlineSizes {
		wanted := C.struct_rn_ibv_qp_cap{
			max_send_wr:     C.uint32_t(sends),
			max_recv_wr:     C.uint32_t(recvs),
			max_send_sge:    1,
			max_recv_sge:    1,
			max_inline_data: C.uint32_t(inline),
		}
		if rc = C.rn_create_qp(e.pd, C.RN_IBV_QPT_UD, q.sendCQ, e.cq, &wanted, &e.qp); rc == 0 {
			q.inline = min(int(wanted.max_inline_data), maxInline)
			e.device.attach(e)
			return nil
		}
	}
	return memoryError("ibv_create_qp", rc, sends*64+recvs*16)
}

// createMemory makes the slots, and the work requests that name them.
func (q *datagramQueue) createMemory(sends, recvs int) error {
	e := q.e
	m, err := e.register(recvs*q.stride, fabric.LocalWrite)
	if err != nil {
		return err
	}
	q.slots = m.bytes
	polls := min(pollBatch, max(1, recvs/4)) // what is polled has its slots until all has been taken
	e.queue = C.rn_queue_new(e.qp, e.cq, C.int(polls), 0, 0, C.int(recvs), 0,
		unsafe.Pointer(unsafe.SliceData(m.bytes)), C.uint32_t(q.stride), C.uint32_t(grhSize+q.mtu), m.mr.lkey)
	if e.queue == nil {
		return os.NewSyscallError("calloc", syscall.ENOMEM)
	}
	e.wc = unsafe.Slice(e.queue.wc, polls)

	if q.sendMR, err = e.register(sends*q.stride, fabric.LocalWrite); err != nil {
		return err
	}
	q.sends = C.rn_queue_new(e.qp, q.sendCQ, sendBatch, C.int(sendBatch), 0, 0, 0, nil, 0, 0, 0)
	if q.sends == nil {
		return os.NewSyscallError("calloc", syscall.ENOMEM)
	}
	e.send, e.sge = unsafe.Slice(q.sends.send, sendBatch), unsafe.Slice(q.sends.send_sge, sendBatch)
	return nil
}

// close gives everything back. Called with the endpoint's mu held.
func (q *datagramQueue) close() {
	q.closing.Store(true)
	if q.listening != nil {
		q.e.Wake()
		<-q.listening
	}
	q.receiving.Lock()
	defer q.receiving.Unlock()
	q.sending.Lock()
	defer q.sending.Unlock()
	if q.e == nil {
		return
	}
	e := q.e
	if q.member != nil {
		q.member.end()
	}
	if e.qp != nil {
		e.device.detach(e)
		C.rn_destroy_qp(e.qp)
		e.qp = nil
	}
	for _, h := range q.d.handles {
		if h.q == q {
			h.destroy()
		}
	}
	if q.sends != nil {
		C.free(unsafe.Pointer(q.sends))
		q.sends, e.send, e.sge = nil, nil, nil
	}
	if q.sendCQ != nil {
		C.rn_destroy_cq(q.sendCQ)
		q.sendCQ = nil
	}
	_ = e.Close() // what could not be undone is gone with the device
	q.memory.Release(q.memory.Bytes())
}

// maxMessage is how many bytes a datagram has at most behind its header.
func (q *datagramQueue) maxMessage() int { return q.mtu - fabric.HeaderSize }

// listen has the endpoint's owner look when there is something.
func (q *datagramQueue) listen() {
	defer close(q.listening)
	for !q.closing.Load() {
		if err := q.e.Wait(); err != nil && !errors.Is(err, fabric.ErrPortDown) {
			q.d.fail(q)
			return
		}
		q.d.notify()
	}
}

// watcher is a sender that wants to be told when a queue pair has gone.
type watcher struct {
	e     *endpoint // its request
	id    uint64
	at    netip.AddrPort
	since time.Time
}

// watch keeps the request of one, and rejects those that are too old to have anybody wait
// for them, or too many. Called with the endpoint's mu held.
func (q *datagramQueue) watch(r pendingRequest) {
	at := netip.AddrPortFrom(r.e.remote.Addr(), r.Port)
	q.watchers = append(q.watchers, watcher{r.e, r.ID, at, time.Now()})
	for len(q.watchers) > maxWatchers || time.Since(q.watchers[0].since) > watchesWithin {
		_ = q.watchers[0].e.Close()
		q.watchers = slices.Delete(q.watchers, 0, 1)
	}
}

func (q *datagramQueue) arm() {
	q.receiving.Lock()
	defer q.receiving.Unlock()
	_ = q.e.Arm() // the device is gone, or the queue pair: Wait says so
}

// receive takes what has arrived, as much as ds has room for, and says how much. It comes
// back after a while from a flood of which nothing is wanted, and has itself called again.
func (q *datagramQueue) receive(ds []fabric.Datagram) (n int) {
	q.receiving.Lock()
	defer q.receiving.Unlock()
	for looked := 0; n < len(ds) && q.e.queue != nil && !q.closing.Load() && !q.failed.Load(); looked++ {
		if looked == len(ds)+pollBatch {
			q.d.notify()
			break
		}
		if q.taken == q.polled && !q.poll() {
			break
		}
		w := &q.e.wc[q.taken]
		q.taken++
		if w.status != C.RN_IBV_WC_SUCCESS {
			q.d.fail(q)
		} else if q.take(w, &ds[n]) {
			n++
		}
	}
	return n
}

// poll posts the receives again whose slots have been copied from, and polls, for more
// than a caller may have room for. It returns false if there is nothing. Called with
// receiving held.
func (q *datagramQueue) poll() bool {
	e := q.e
	if q.taken > 0 && C.rn_post_recv(e.queue, C.int(q.taken)) != 0 {
		q.d.fail(q)
		return false
	}
	q.polled, q.taken = int(C.rn_poll(e.queue, C.int(len(e.wc)))), 0
	if q.polled < 0 {
		q.polled = 0
		q.d.fail(q)
	}
	return q.polled > 0
}

// take copies a datagram that has arrived, if it is wanted.
func (q *datagramQueue) take(w *C.struct_rn_ibv_wc, d *fabric.Datagram) (wanted bool) {
	slot := q.slots[int(w.wr_id)*q.stride:][:w.byte_len]
	d.Header, d.From, d.Via, d.Len = [fabric.HeaderSize]byte{}, netip.AddrPort{}, fabric.Via{Queue: q.number}, 0
	var rest []byte
	if w.wc_flags&C.RN_IBV_WC_GRH != 0 && len(slot) >= grhSize+fabric.HeaderSize {
		var from netip.Addr
		from, d.Via.To = addressesOf((*[grhSize]byte)(slot), q.zone)
		d.From = netip.AddrPortFrom(from, 0)
		d.Header = [fabric.HeaderSize]byte(slot[grhSize:])
		rest = slot[grhSize+fabric.HeaderSize:]
		d.Len = len(rest)
	}
	if !q.d.filter(d) {
		return false
	}
	for _, part := range d.Buffers {
		rest = rest[copy(part, rest):]
	}
	return true
}

// Close implements [fabric.AddressHandle]. What was sent has left the device by then.
func (h *addressHandle) Close() {
	h.cancel()
	q := h.q
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	delete(q.d.handles, h.id)
	q.sending.Lock()
	defer q.sending.Unlock()
	if h.ah == nil {
		return // the queue pair has gone
	}
	if !q.drain(0) {
		q.d.fail(q)
		C.rn_qp_error(q.e.qp)
	}
	h.destroy()
}

// destroy gives back what the device has of the handle. Called with the queue pair's sending
// held.
func (h *addressHandle) destroy() {
	h.gone.Store(true)
	C.rn_destroy_ah(h.ah)
	h.ah = nil
}

// send sends datagrams to receivers of which the queue pair has the handles.
func (q *datagramQueue) send(ds []fabric.Datagram) {
	q.sending.Lock()
	defer q.sending.Unlock()
	batch := 0
	for i := range ds {
		if ds[i].Status = q.encode(batch, &ds[i]); ds[i].Status != fabric.OK {
			continue
		}
		if batch++; batch == min(sendBatch, q.depth) {
			q.post(batch)
			batch = 0
		}
	}
	q.post(batch)
}

// encode makes slot i of the batch a send of d. Called with sending held.
func (q *datagramQueue) encode(i int, d *fabric.Datagram) fabric.Status {
	h := d.To.(*addressHandle)
	n := fabric.HeaderSize
	for _, b := range d.Buffers {
		n += len(b)
	}
	switch {
	case h.gone.Load() || q.failed.Load():
		return fabric.Flushed
	case n > h.maxMessage+fabric.HeaderSize:
		return fabric.RNRRetryExceeded
	case !q.drain(q.depth - 1 - i):
		q.d.fail(q)
		return fabric.Flushed
	}
	at := int((q.posted+uint64(i))%uint64(q.depth)) * q.stride
	slot := q.sendMR.bytes[at:][:n]
	rest := slot[copy(slot, d.Header[:]):]
	for _, b := range d.Buffers {
		rest = rest[copy(rest, b):]
	}
	w, s := &q.e.send[i], &q.e.sge[i]
	w.opcode = C.RN_IBV_WR_SEND
	w.send_flags = 0
	if n <= q.inline {
		w.send_flags = C.RN_IBV_SEND_INLINE
	}
	w.num_sge = 1
	w.remote_addr = C.uint64_t(uintptr(unsafe.Pointer(h.ah)))
	w.rkey = C.uint32_t(h.receiver.number)
	w.remote_qkey = C.uint32_t(h.receiver.key)
	s.addr = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(slot))))
	s.length = C.uint32_t(n)
	s.lkey = q.sendMR.mr.lkey
	return fabric.OK
}

// post posts a batch, of which the last tells that all have been sent. Called with sending
// held.
func (q *datagramQueue) post(n int) {
	if n == 0 {
		return
	}
	q.posted += uint64(n)
	last := &q.e.send[n-1]
	last.send_flags |= C.RN_IBV_SEND_SIGNALED
	last.wr_id = C.uint64_t(q.posted)
	if C.rn_post_send(q.sends, C.int(n)) != 0 {
		q.d.fail(q)
	}
}

// drain waits until at most so many sends are under way, or returns false if the device
// does not get on. Called with sending held.
func (q *datagramQueue) drain(most int) bool {
	var deadline time.Time
	for polls := 0; q.posted-q.done > uint64(most); polls++ {
		if q.failed.Load() {
			return false
		}
		n := int(C.rn_poll(q.sends, sendBatch))
		for i := range max(n, 0) {
			w := &unsafe.Slice(q.sends.wc, sendBatch)[i]
			if w.status != C.RN_IBV_WC_SUCCESS {
				return false
			}
			q.done = uint64(w.wr_id)
		}
		switch {
		case n < 0:
			return false
		case n > 0:
		case deadline.IsZero():
			deadline = time.Now().Add(sendWithin)
		case polls > spin:
			if time.Now().After(deadline) {
				return false
			}
			time.Sleep(10 * time.Microsecond)
		default:
			runtime.Gosched()
		}
	}
	return true
}
