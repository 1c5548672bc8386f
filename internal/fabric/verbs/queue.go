//go:build linux && cgo

package verbs

// Posting and polling. Work requests and completions lie in C memory, so each
// call crosses into C once, with no Go pointer in what it hands over, and
// allocates nothing.

// #cgo noescape rn_post_send
// #cgo nocallback rn_post_send
// #cgo noescape rn_post_recv
// #cgo nocallback rn_post_recv
// #cgo noescape rn_poll
// #cgo nocallback rn_poll
// #cgo noescape rn_arm
// #cgo nocallback rn_arm
// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

var sendOpcode = [...]C.uint{
	fabric.Send:     C.RN_IBV_WR_RDMA_WRITE_WITH_IMM,
	fabric.Write:    C.RN_IBV_WR_RDMA_WRITE,
	fabric.WriteImm: C.RN_IBV_WR_RDMA_WRITE_WITH_IMM,
}

// handle is what C's functions of the path of data take for a queue. cgo would look for Go pointers
// behind a pointer, in each call.
func handle(q *C.struct_rn_queue) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(q))) }

func (e *endpoint) PostSend(wr []fabric.WorkRequest) error {
	if e.queue == nil {
		return net.ErrClosed
	}
	if len(wr) == 0 {
		return nil
	}
	if len(wr) > e.options.SendQueue {
		return fmt.Errorf("post %d work requests to a queue of %d: %w", len(wr), e.options.SendQueue, syscall.ENOMEM)
	}
	used := e.out.used
	n, err := e.encodeAll(wr)
	if err != nil {
		e.out.used = used
		return err
	}
	if n == 0 {
		return nil
	}
	if e.iwarp != nil {
		e.iwarp.readsPosted(signaled(wr))
	}
	if rc := C.rn_post_send(handle(e.queue), C.int(n)); rc != 0 {
		return e.device.deviceError("ibv_post_send", rc)
	}
	return nil
}

// signaled is the number of work requests that are signaled.
func signaled(wr []fabric.WorkRequest) (n int32) {
	for i := range wr {
		if wr[i].Signaled {
			n++
		}
	}
	return n
}

// encodeAll writes work requests to slots, from the first on, and returns the number of
// slots.
func (e *endpoint) encodeAll(wr []fabric.WorkRequest) (slots int, err error) {
	for i := range wr {
		if wr[i].ID&recvBit != 0 || int(wr[i].Op) >= len(sendOpcode) {
			return 0, fmt.Errorf("work request %#x, opcode %d: %w", wr[i].ID, wr[i].Op, syscall.EINVAL)
		}
		if e.iwarp != nil {
			slots, err = e.encodeParts(slots, &wr[i])
		} else {
			err = e.encode(slots, &wr[i])
			slots++
		}
		if err != nil {
			return 0, err
		}
	}
	return slots, nil
}

// encode writes wr to slot i.
func (e *endpoint) encode(i int, wr *fabric.WorkRequest) error {
	w, s := &e.send[i], &e.sge[i]
	w.wr_id = C.uint64_t(wr.ID)
	w.opcode = sendOpcode[wr.Op]
	w.send_flags = 0
	if wr.Signaled {
		w.send_flags = C.RN_IBV_SEND_SIGNALED
	}
	to, rkey, imm, err := e.target(wr)
	if err != nil {
		return err
	}
	w.remote_addr = C.uint64_t(to)
	w.rkey = C.uint32_t(rkey)
	binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&w.imm_data))[:], imm)

	n := wr.Len()
	if n == 0 {
		// irdma loads the first fragment of a write even if num_sge is 0.
		w.num_sge, *s = 0, C.struct_rn_ibv_sge{}
		return nil
	}
	w.num_sge = 1
	s.length = C.uint32_t(n)
	if n <= e.inlineSize {
		w.send_flags |= C.RN_IBV_SEND_INLINE
	}
	if wr.Memory == nil {
		if n > e.inlineSize {
			return fmt.Errorf("%d bytes inline, at most %d: %w", n, e.inlineSize, syscall.EMSGSIZE)
		}
		slot := e.inline[i*e.inlineSize:][:n]
		wr.CopyTo(slot)
		s.addr = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(slot))))
		return nil
	}
	m, ok := wr.Memory.(*memory)
	if !ok {
		return fmt.Errorf("memory of another fabric: %w", syscall.EINVAL)
	}
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(wr.Data))))
	if off := addr - m.Addr(); off > uint64(len(m.bytes)) || uint64(n) > uint64(len(m.bytes))-off {
		return fmt.Errorf("data outside its memory: %w", syscall.EFAULT)
	}
	s.addr = C.uint64_t(addr)
	s.lkey = m.mr.lkey
	return nil
}

// target returns the remote address, the rkey and the immediate of wr. A Send gets the
// next slot of the peer's mailbox.
func (e *endpoint) target(wr *fabric.WorkRequest) (addr uint64, rkey, imm uint32, err error) {
	if wr.Op != fabric.Send {
		return wr.RemoteAddr, wr.RKey, wr.Imm, nil
	}
	if e.out.number == 0 {
		return 0, 0, 0, fmt.Errorf("a Send where there are none: %w", syscall.EINVAL)
	}
	return e.out.addr + uint64(e.out.next()), e.out.rkey, sendImmediate, nil
}

func (e *endpoint) PostRecv(n int) error {
	if e.queue == nil {
		return net.ErrClosed
	}
	if n <= 0 {
		return nil
	}
	if n > e.options.RecvQueue {
		return fmt.Errorf("post %d receives to a queue of %d: %w", n, e.options.RecvQueue, syscall.ENOMEM)
	}
	if rc := C.rn_post_recv(handle(e.queue), C.int(n)); rc != 0 {
		return e.device.deviceError("ibv_post_recv", rc)
	}
	return nil
}

func (e *endpoint) Poll(c []fabric.Completion) (int, error) {
	if e.queue == nil {
		return 0, net.ErrClosed
	}
	n := int(C.rn_poll(handle(e.queue), C.int(min(len(c), len(e.wc)))))
	if n < 0 {
		return 0, fmt.Errorf("ibv_poll_cq: %w", fabric.ErrQueuePair)
	}
	for i := range n {
		if !e.decode(&c[i], &e.wc[i]) {
			return 0, fmt.Errorf("%w: the device reports a wrong length of what has arrived", fabric.ErrQueuePair)
		}
	}
	if n == 0 && e.iwarp != nil {
		n = e.iwarp.pollRetriesExceeded(c)
	}
	return n, nil
}

// decode reads a completion. If it failed, only its wr_id, status and vendor_err are
// valid. decode returns false if its length is found to be wrong: see checkLength.
func (e *endpoint) decode(c *fabric.Completion, w *C.struct_rn_ibv_wc) (ok bool) {
	*c = fabric.Completion{
		Status: statusOf(uint32(w.status)),
		Vendor: uint32(w.vendor_err),
	}
	id := uint64(w.wr_id)
	if id&recvBit == 0 {
		c.ID = id
		if e.iwarp != nil && c.Status == fabric.OK {
			e.iwarp.readCompleted()
		}
		return true
	}
	c.Recv = true
	if c.Status != fabric.OK {
		return true
	}
	c.Len = int(w.byte_len)
	imm, immediate := uint32(0), w.opcode == C.RN_IBV_WC_RECV_RDMA_WITH_IMM
	switch {
	case immediate:
		imm = binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&w.imm_data))[:])
	case c.Len == noticeSize && e.iwarp != nil:
		imm, c.Len = e.iwarp.notice(int(id &^ recvBit))
		immediate = true
	}
	switch {
	case !immediate: // a SEND without a notice
		c.Op = fabric.Send
	case imm == sendImmediate && e.in.number > 0:
		if e.in.probe != nil && !e.checkLength(c.Len) {
			return false
		}
		e.in.take(c)
	default:
		c.Op, c.Imm = fabric.WriteImm, imm
	}
	return true
}

func (e *endpoint) Arm() error {
	if e.queue == nil {
		return net.ErrClosed
	}
	e.armed.Store(true)
	if rc := C.rn_arm(handle(e.queue)); rc != 0 {
		return e.device.deviceError("ibv_req_notify_cq", rc)
	}
	return nil
}
