//go:build linux && cgo

package verbs

// iWARP is RDMA over TCP (RFC 5040 to 5044). Other packages need not know of it;
// docs/protocol.md, "Over iWARP", has what goes over the wire. The differences are here:
//
//   - A device moves the queue pair to RTS by itself when TCP has connected (iw_cm).
//   - The side that dialed sends first: Confirm posts a SEND of 0 bytes, for which the
//     other side posts one more receive. If that SEND arrives while siw is sending the
//     answer, siw may deliver it only with the next one: Accept then waits for what the
//     dialer sends next.
//   - Not all devices have a WRITE WITH IMMEDIATE: a WRITE is followed by a SEND of a
//     notice instead.
//   - A WRITE or SEND completes when this side's device no longer needs its bytes, which
//     may be when TCP has taken them, and before they arrive. So a signaled request is
//     followed by a READ, whose completion stands for the request's: the peer's device
//     answers it after all that was sent before.
//   - TCP gives up a peer that does not answer after a quarter of an hour. Here, when no
//     READ under way is answered for as long as InfiniBand's retries take, Poll returns a
//     completion with RetryExceeded.

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

// iwarp is the state that only an endpoint of an iWARP device has.
type iwarp struct {
	notices   []byte        // the receives' buffers, of noticeSize bytes each
	requested chan struct{} // closed when rdma_connect has returned; nil before it is called
	closing   bool          // a goroutine is to close the endpoint: see closeLater

	reads    atomic.Int32 // READs under way
	answered atomic.Int64 // when a READ last completed, or the first under way was posted; Unix time in ns
	patience time.Duration
	timer    *time.Timer // calls checkReads; pending while READs are under way
	silent   atomic.Bool // no READ has been answered for patience, as checkReads found
	reported bool        // Poll has reported that, or Disconnect has been called
}

const (
	// noticeSize is the length of the SEND behind a WRITE: the immediate and how
	// many bytes were written, big endian.
	noticeSize = 8

	// cellSize is the size in bytes of the end of the mailbox, which READs write to.
	// They read the first byte of the peer's mailbox.
	cellSize = 8

	// partsPerRequest is the maximum number of the device's work requests for one of the
	// fabric's: WRITE, SEND and READ.
	partsPerRequest = 3

	// maxReads bounds the READs under way, and so the depth of the send queue. When siw
	// has more READs to send than may be under way, it answers the peer's only after its
	// own: if both sides did so, each would wait for the other.
	maxReads = 128
)

// readable is access to memory that the peer may also read; only a mailbox has it.
const readable = fabric.RemoteWrite + 1

// iwarpOf returns a new iwarp if the id's device is an iWARP device, or else nil.
func iwarpOf(id cmID) *iwarp {
	if id.verbs == nil || id.verbs.device.transport_type != C.RN_IBV_TRANSPORT_IWARP {
		return nil
	}
	return &iwarp{}
}

// reads is how many READs may be under way over the device, in either direction.
func (d *device) reads() int {
	return min(int(d.attr.max_qp_rd_atom), int(d.attr.max_qp_init_rd_atom), maxReads)
}

// clamp returns the depths of o's queues, reduced to what the device can do.
func (e *endpoint) clamp(o fabric.Options) (sends, recvs int) {
	if e.iwarp == nil {
		return e.device.clamp(o.SendQueue, o.RecvQueue)
	}
	parts := e.partsOf(shape{sends: min(o.SendQueue, e.device.reads()), recvs: o.RecvQueue})
	sends, recvs = e.device.clamp(parts.sends, parts.recvs)
	return (sends - 1) / partsPerRequest, recvs - 1
}

// partsOf is the shape of the device's queues for the fabric's queues of shape s.
func (e *endpoint) partsOf(s shape) shape {
	if e.iwarp != nil {
		s.sends = partsPerRequest*s.sends + 1 // and Confirm's SEND
		s.recvs++                             // and the receive for it
	}
	return s
}

// openIWARP prepares the watch over READs.
func (e *endpoint) openIWARP() error {
	if e.inlineSize < noticeSize {
		return fmt.Errorf("an iWARP device that takes no %d bytes inline: %w", noticeSize, errors.ErrUnsupported)
	}
	w := e.iwarp
	w.patience = e.options.AckTimeout * time.Duration(e.options.Retries+1)
	w.timer = time.AfterFunc(math.MaxInt64, e.checkReads)
	return nil
}

// buffers are the receives' buffers, one behind the other.
type buffers struct {
	addr unsafe.Pointer
	size C.uint32_t // of each
	lkey C.uint32_t
}

// createNotices makes the buffers of recvs receives with iWARP, and none otherwise.
func (e *endpoint) createNotices(recvs int) (buffers, error) {
	if e.iwarp == nil {
		return buffers{}, nil
	}
	m, err := e.register(recvs*noticeSize, fabric.LocalWrite)
	if err != nil {
		return buffers{}, err
	}
	e.iwarp.notices = m.bytes
	return buffers{unsafe.Pointer(unsafe.SliceData(m.bytes)), noticeSize, m.mr.lkey}, nil
}

// checkReads is called by the timer. If no READ has been answered for patience, it sets
// silent and wakes Wait, so that Poll is called.
func (e *endpoint) checkReads() {
	w := e.iwarp
	switch left, waiting := w.untilSilent(); {
	case !waiting:
	case left > 0:
		w.timer.Reset(left)
	default:
		w.silent.Store(true)
		e.Wake()
	}
}

// untilSilent is how much longer the READs under way may stay unanswered, if there are
// any.
func (w *iwarp) untilSilent() (left time.Duration, waiting bool) {
	if w.reads.Load() == 0 { // read before answered, which readsPosted and readCompleted write first
		return 0, false
	}
	return w.patience - time.Since(time.Unix(0, w.answered.Load())), true
}

// readsPosted counts n READs that are about to be posted.
func (w *iwarp) readsPosted(n int32) {
	if n == 0 {
		return
	}
	if w.reads.Load() == 0 {
		w.answered.Store(time.Now().UnixNano())
	}
	if w.reads.Add(n) == n { // the earlier ones may have completed since
		w.timer.Reset(w.patience)
	}
}

// readCompleted counts a READ that has completed.
func (w *iwarp) readCompleted() {
	w.answered.Store(time.Now().UnixNano())
	w.reads.Add(-1)
}

// pollRetriesExceeded returns a completion with RetryExceeded in c, once, if the READs
// under way are still unanswered. Poll calls it when it has found no completion: READs
// whose completions were polled late have been answered.
func (w *iwarp) pollRetriesExceeded(c []fabric.Completion) int {
	if w.reported || !w.silent.Load() || len(c) == 0 {
		return 0
	}
	w.silent.Store(false)
	switch left, waiting := w.untilSilent(); {
	case !waiting:
		return 0
	case left > 0:
		w.timer.Reset(left)
		return 0
	}
	w.reported = true
	c[0] = fabric.Completion{Status: fabric.RetryExceeded}
	return 1
}

// connectTCP is Connect over iWARP.
func (e *endpoint) connectTCP(ctx context.Context, private []byte) ([]byte, error) {
	if err := e.request(ctx, private); err != nil {
		return nil, err
	}
	ev, err := e.await(ctx, C.RN_RDMA_CM_EVENT_ESTABLISHED)
	if err != nil {
		return nil, err
	}
	e.contacted = true
	answer := e.out.parse(ev.private, answerSize)
	return answer[:min(len(answer), mtuAt)], e.requireMailbox()
}

// request calls rdma_connect in a goroutine, which goes on if ctx ends first: with siw,
// rdma_connect returns when TCP has connected, or has given up after two minutes.
func (e *endpoint) request(ctx context.Context, private []byte) error {
	requested := make(chan struct{})
	e.iwarp.requested = requested
	var rc C.int
	go func() {
		defer close(requested)
		data, n := privateData(private)
		reads := C.uint8_t(e.device.reads())
		rc = C.rn_connect(e.id, e.qp.qp_num, reads, C.uint8_t(e.options.Retries), rnrRetries, data, n)
	}()
	select {
	case <-requested:
	case <-ctx.Done():
		return ctx.Err()
	}
	switch syscall.Errno(rc) {
	case 0:
		return nil
	case syscall.ECONNREFUSED:
		return &fabric.RejectError{Reason: fabric.RejectNoListener}
	}
	return syscallError("rdma_connect", rc)
}

// closeLater reports whether rdma_connect has been called and the peer has not answered,
// and then closes the endpoint in a goroutine. That takes until the peer has answered,
// or until TCP or the kernel (siw: after 20 s) has given up: the kernel makes
// rdma_destroy_id wait for it.
func (e *endpoint) closeLater() bool {
	w := e.iwarp
	if w == nil || w.requested == nil || e.contacted {
		return false
	}
	if !w.closing {
		w.closing = true
		go func() {
			<-w.requested
			_ = e.close() // Close has returned: no caller is left for the error
		}()
	}
	return true
}

// sendConfirm is Confirm over iWARP: before this SEND arrives, the other side must not
// send.
func (e *endpoint) sendConfirm() error {
	if e.changes.Has(fabric.ErrDisconnected) {
		return fmt.Errorf("the peer has withdrawn from the handshake: %w", fabric.ErrDisconnected)
	}
	e.encodeSend(0, 0, nil)
	if rc := C.rn_post_send(handle(e.queue), 1); rc != 0 {
		return e.stateError("ibv_post_send", rc)
	}
	return nil
}

// awaitConfirm waits for that SEND, while watchFirstMessage is in effect.
func (e *endpoint) awaitConfirm(ctx context.Context) error {
	var c [1]fabric.Completion
	for {
		n, err := e.Poll(c[:])
		switch {
		case err != nil:
			return err
		case n == 0:
			if _, err := e.await(ctx, commEst); err != nil {
				return err
			}
		case c[0].Status != fabric.OK:
			return fmt.Errorf("during the handshake: %w", fabric.ErrDisconnected)
		default:
			return nil
		}
	}
}

// encodeParts writes the WRITE, SEND and READ for wr to the slots from i on, each with
// wr's ID, and returns the next slot.
func (e *endpoint) encodeParts(i int, wr *fabric.WorkRequest) (next int, err error) {
	write := *wr
	write.Op, write.Signaled = fabric.Write, false
	if write.RemoteAddr, write.RKey, write.Imm, err = e.target(wr); err != nil {
		return i, err
	}
	n := wr.Len()
	if n > 0 {
		if err := e.encode(i, &write); err != nil {
			return i, err
		}
		i++
	}
	if wr.Op != fabric.Write {
		var notice [noticeSize]byte
		binary.BigEndian.PutUint32(notice[:], write.Imm)
		binary.BigEndian.PutUint32(notice[4:], uint32(n))
		e.encodeSend(i, wr.ID, notice[:])
		i++
	}
	if wr.Signaled {
		e.encodeRead(i, wr.ID)
		i++
	}
	return i, nil
}

// encodeSend writes a SEND of b, inline, to slot i.
func (e *endpoint) encodeSend(i int, id uint64, b []byte) {
	w, s := &e.send[i], &e.sge[i]
	w.wr_id = C.uint64_t(id)
	w.opcode = C.RN_IBV_WR_SEND
	w.send_flags = C.RN_IBV_SEND_INLINE
	w.num_sge = 1
	slot := e.inline[i*e.inlineSize:][:copy(e.inline[i*e.inlineSize:], b)]
	s.addr, s.length = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(slot)))), C.uint32_t(len(slot))
}

// encodeRead writes a READ of the first byte of the peer's mailbox to slot i.
func (e *endpoint) encodeRead(i int, id uint64) {
	w, s, own := &e.send[i], &e.sge[i], e.in.memory
	w.wr_id = C.uint64_t(id)
	w.opcode = C.RN_IBV_WR_RDMA_READ
	w.send_flags = C.RN_IBV_SEND_SIGNALED
	w.remote_addr = C.uint64_t(e.out.addr)
	w.rkey = C.uint32_t(e.out.rkey)
	w.num_sge = 1
	cell := own.Addr() + uint64(e.in.number*e.in.stride)
	s.addr, s.length, s.lkey = C.uint64_t(cell), 1, own.mr.lkey
}

// notice decodes the notice that receive i has taken: the immediate of the WRITE before
// it, and the number of bytes written.
func (w *iwarp) notice(i int) (imm uint32, written int) {
	b := w.notices[i*noticeSize:]
	return binary.BigEndian.Uint32(b), int(binary.BigEndian.Uint32(b[4:]))
}
