//go:build linux && cgo

package verbs

// What a queue pair of type UD sends, and the address handles that say where to.

// #include "shim.h"
import "C"

import (
	"net"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

// sendWithin is how long datagrams may wait for the device to send them: one whose port is
// up, and that no other has told to pause, takes microseconds.
const sendWithin = time.Second

// queueSends are the sends of a queue pair, which have a completion queue of their own.
type queueSends struct {
	depth  int // of the send queue
	sendCQ *C.struct_rn_ibv_cq
	sends  *C.struct_rn_queue
	sendMR *memory
	inline int // bytes that a send may have

	sending      sync.Mutex // guards what follows
	posted, done uint64     // counts of sends
	handles      map[*addressHandle]struct{}
}

// aim has a handle lead to where its receiver is, or is by now: a new address handle asks
// the kernel for the address on Ethernet again. The error is net.ErrClosed if the queue pair
// has gone, or the handle was released.
func (q *datagramQueue) aim(h *addressHandle, at *service) error {
	q.handling.Lock()
	defer q.handling.Unlock()
	if q.closing.Load() {
		return net.ErrClosed
	}
	var ah *C.struct_rn_ibv_ah
	if rc := C.rn_create_ah(q.e.pd, &at.attr, &ah); rc != 0 {
		return deviceError("ibv_create_ah", rc)
	}
	q.sending.Lock()
	defer q.sending.Unlock()
	if h.released {
		C.rn_destroy_ah(ah)
		return net.ErrClosed
	}
	q.retire(h)
	h.ah = ah
	q.handles[h] = struct{}{}
	return nil
}

// retire gives back what the device has of a handle, once what was sent by it has left the
// device. Called with sending held.
func (q *datagramQueue) retire(h *addressHandle) {
	if h.ah == nil {
		return // it has not led anywhere yet, or the queue pair has gone
	}
	if !q.drain(0) {
		q.d.fail(q)
		C.rn_qp_error(q.e.qp)
	}
	q.destroy(h)
}

// destroy does that, when nothing is sent any more. Called with sending held.
func (q *datagramQueue) destroy(h *addressHandle) {
	C.rn_destroy_ah(h.ah)
	h.ah = nil
	delete(q.handles, h)
}

// release gives back a handle.
func (q *datagramQueue) release(h *addressHandle) {
	q.sending.Lock()
	defer q.sending.Unlock()
	h.released = true
	q.retire(h)
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
	case h.gone.Load() || h.ah == nil || q.failed.Load():
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
