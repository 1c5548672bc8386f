//go:build linux && cgo

package verbs

// iWARP is RDMA over TCP (RFC 5040 to 5044). To those above this package it is what
// InfiniBand is; docs/protocol.md, "Over iWARP", has what goes over the wire. What
// differs is here:
//
//   - A device moves the queue pair by itself when TCP has connected (iw_cm).
//   - The side that dialed sends first: Confirm sends nothing, in a SEND, for which
//     the other side posts one receive more.
//     siw may let that SEND lie until another comes, when it comes while the answer
//     is being sent: Accept then waits for what the dialer sends next.
//   - There is no WRITE WITH IMMEDIATE that all devices have: a WRITE is followed by
//     a SEND of a notice.
//   - A WRITE or SEND completes when this side's device needs its bytes no more,
//     which may be when TCP has taken them. It says nothing of the peer, so that a
//     request that is signaled is followed by a READ, whose completion is taken for
//     the request's: it has been answered by the peer's device, behind all that was
//     sent before.
//   - TCP gives a peer up that does not answer after a quarter of an hour. Here it is
//     given up when no READ under way is answered for as long as InfiniBand's retries
//     take; Poll says so.

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

// iwarp is what an endpoint of an iWARP device has besides.
type iwarp struct {
	notices   []byte        // of noticeSize each, in which receives have them
	requested chan struct{} // closed when rdma_connect has returned; nil before it is called
	left      bool          // to be closed when the peer has answered

	reads    atomic.Int32 // under way
	answered atomic.Int64 // when one was last, or began after none; Unix time in ns
	patience time.Duration
	timer    *time.Timer // of silent; pending while READs are under way
	silent   atomic.Bool // the peer's device does not answer
	told     bool        // of that, or Disconnect has been called; Poll's
}

const (
	// noticeSize is the length of the SEND behind a WRITE: the immediate and how
	// many bytes were written, big endian.
	noticeSize = 8

	// cellSize is how much of the mailbox, at its end, READs write to. What they
	// read is the first byte of the peer's mailbox.
	cellSize = 8

	// partsPerRequest is how many work requests of the device's may take the place
	// of one of the fabric's: WRITE, SEND and READ.
	partsPerRequest = 3

	// maxReads bounds the READs under way, and so the requests of a queue: siw has
	// the peer's READs wait for its own, and both sides wait for one another, when
	// it has more to send than may be under way.
	maxReads = 128
)

// readable is memory for the peer to read and write, and no others.
const readable = fabric.RemoteWrite + 1

// iwarpOf returns what an endpoint has besides if its device is one of iWARP.
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

// clamp is how deep the queues may be over the device.
func (e *endpoint) clamp(o fabric.Options) (sends, recvs int) {
	if e.iwarp == nil {
		return e.device.clamp(o.SendQueue, o.RecvQueue)
	}
	parts := e.partsOf(shape{sends: min(o.SendQueue, e.device.reads()), recvs: o.RecvQueue})
	sends, recvs = e.device.clamp(parts.sends, parts.recvs)
	return (sends - 1) / partsPerRequest, recvs - 1
}

// partsOf is how deep the queues of the device have to be for those of the fabric.
func (e *endpoint) partsOf(s shape) shape {
	if e.iwarp != nil {
		s.sends = partsPerRequest*s.sends + 1 // and what Confirm sends
		s.recvs++                             // and what takes it
	}
	return s
}

// openIWARP makes what the endpoint has besides.
func (e *endpoint) openIWARP() error {
	if e.inlineSize < noticeSize {
		return fmt.Errorf("an iWARP device that takes no %d bytes inline: %w", noticeSize, errors.ErrUnsupported)
	}
	w := e.iwarp
	w.patience = e.options.AckTimeout * time.Duration(e.options.Retries+1)
	w.timer = time.AfterFunc(math.MaxInt64, e.checkReads)
	return nil
}

// buffers are the receives', one behind the other.
type buffers struct {
	addr unsafe.Pointer
	size C.uint32_t // of each
	lkey C.uint32_t
}

// createNotices makes the buffers of so many receives: none but with iWARP.
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

// checkReads has Poll called when no READ has been answered for a while.
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

// untilSilent is for how long the READs under way may yet stay unanswered, if there are any.
func (w *iwarp) untilSilent() (left time.Duration, waiting bool) {
	if w.reads.Load() == 0 { // before the time: began and ended write it first
		return 0, false
	}
	return w.patience - time.Since(time.Unix(0, w.answered.Load())), true
}

// began takes note of READs that are posted.
func (w *iwarp) began(n int32) {
	if n == 0 {
		return
	}
	if w.reads.Load() == 0 {
		w.answered.Store(time.Now().UnixNano())
	}
	if w.reads.Add(n) == n { // those before may have ended since
		w.timer.Reset(w.patience)
	}
}

// ended takes note of a READ that has completed.
func (w *iwarp) ended() {
	w.answered.Store(time.Now().UnixNano())
	w.reads.Add(-1)
}

// sayRetriesExceeded makes a completion of the peer's silence, once. There are no
// others any more: of those that were not polled in time, the READs are answered.
func (w *iwarp) sayRetriesExceeded(c []fabric.Completion) int {
	if w.told || !w.silent.Load() || len(c) == 0 {
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
	w.told = true
	c[0] = fabric.Completion{Status: fabric.RetryExceeded}
	return 1
}

// connectTCP is Connect.
func (e *endpoint) connectTCP(ctx context.Context, private []byte) ([]byte, error) {
	if err := e.request(ctx, private); err != nil {
		return nil, err
	}
	ev, err := e.await(ctx, C.RN_RDMA_CM_EVENT_ESTABLISHED)
	if err != nil {
		return nil, err
	}
	e.heard = true
	return e.out.hear(ev.private, fabric.MaxAcceptData), nil
}

// request has rdma_connect called, which with siw returns when TCP has connected,
// or given up after two minutes.
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

// closeLater has the endpoint closed when the peer has answered, if it has been
// asked and has not, or TCP, or the kernel (siw: after 20 s), has given it up: until
// then the kernel has whoever destroys the endpoint wait. It says whether that is so.
func (e *endpoint) closeLater() bool {
	w := e.iwarp
	if w == nil || w.requested == nil || e.heard {
		return false
	}
	if !w.left {
		w.left = true
		go func() {
			<-w.requested
			_ = e.close() // there is nobody to tell
		}()
	}
	return true
}

// sendFirst confirms the connection: without, the other side might not send.
func (e *endpoint) sendFirst() error {
	if e.changes.Has(fabric.ErrDisconnected) {
		return fmt.Errorf("the peer has withdrawn from the handshake: %w", fabric.ErrDisconnected)
	}
	e.encodeSend(0, 0, nil)
	if rc := C.rn_post_send(e.queue, 1); rc != 0 {
		return e.stateError("ibv_post_send", rc)
	}
	return nil
}

// awaitFirst waits for that, with the queue watched (watchFirstMessage).
func (e *endpoint) awaitFirst(ctx context.Context) error {
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

// encodeParts writes what takes the place of wr to the slots from i on, and returns
// the next. Each part has its ID.
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
	w.send_flags = C.RN_IBV_SEND_INLINE | C.RN_IBV_SEND_SOLICITED
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

// notice is what the SEND of a notice said that receive i has taken: of the WRITE
// before it the immediate, and how many bytes it has written.
func (w *iwarp) notice(i int) (imm uint32, written int) {
	b := w.notices[i*noticeSize:]
	return binary.BigEndian.Uint32(b), int(binary.BigEndian.Uint32(b[4:]))
}
