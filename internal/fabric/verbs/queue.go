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
	for i := range wr {
		if err := e.encode(i, &wr[i]); err != nil {
			e.out.used = used
			return err
		}
	}
	if rc := C.rn_post_send(handle(e.queue), C.int(len(wr))); rc != 0 {
		return e.device.deviceError("ibv_post_send", rc)
	}
	e.posted += uint64(len(wr))
	return nil
}

// RingDue and Ring implement [fabric.Endpoint]. The peer's device makes its own completions.
func (e *endpoint) RingDue() bool { return false }
func (e *endpoint) Ring()         {}

// encode writes wr to slot i.
func (e *endpoint) encode(i int, wr *fabric.WorkRequest) error {
	if wr.ID&recvBit != 0 || int(wr.Op) >= len(sendOpcode) {
		return fmt.Errorf("work request %#x, opcode %d: %w", wr.ID, wr.Op, syscall.EINVAL)
	}
	w, s := &e.send[i], &e.sge[i]
	w.wr_id = C.uint64_t(wr.ID)
	w.opcode = sendOpcode[wr.Op]
	w.send_flags = 0
	if wr.Signaled {
		w.send_flags = C.RN_IBV_SEND_SIGNALED
	}
	to, rkey, imm := e.target(wr)
	w.remote_addr = C.uint64_t(to)
	w.rkey = C.uint32_t(rkey)
	n := wr.Len()
	binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&w.imm_data))[:], imm|lengthCheck(n))

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
		slot := e.inlineSlot(i)[:n]
		wr.CopyTo(slot)
		s.addr = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(slot))))
		s.lkey = e.inlineKey
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

// inlineSlot is where inline data of slot i of the batch goes: registered memory that is not written to
// again before the request has completed, for there are devices that do not look at IBV_SEND_INLINE
// (mana).
func (e *endpoint) inlineSlot(i int) []byte {
	slot := int((e.posted + uint64(i)) % uint64(len(e.send)))
	return e.inline[slot*e.inlineSize:]
}

// Bits of an immediate that say how long the message is, modulo a prime: a stream's bytes are found by
// nothing but the lengths that the device reports, so these are compared.
const (
	lengthShift = 16
	lengthPrime = 8191
	lengthMask  = (1<<13 - 1) << lengthShift
)

func lengthCheck(n int) uint32 { return uint32(n) % lengthPrime << lengthShift }

// target returns the remote address, the rkey and the immediate of wr. A Send gets the
// next slot of the peer's mailbox.
func (e *endpoint) target(wr *fabric.WorkRequest) (addr uint64, rkey, imm uint32) {
	if wr.Op != fabric.Send {
		return wr.RemoteAddr, wr.RKey, wr.Imm
	}
	return e.out.addr + uint64(e.out.next()), e.out.rkey, sendImmediate
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
	return n, nil
}

// decode reads a completion. If it failed, only its wr_id, status and vendor_err are
// valid. decode returns false if its length is not the one that its immediate tells.
func (e *endpoint) decode(c *fabric.Completion, w *C.struct_rn_ibv_wc) (ok bool) {
	*c = fabric.Completion{
		Status: fabric.Status(w.status),
		Vendor: uint32(w.vendor_err),
	}
	id := uint64(w.wr_id)
	if id&recvBit == 0 {
		c.ID = id
		return true
	}
	c.Recv = true
	if c.Status != fabric.OK {
		return true
	}
	c.Len = int(w.byte_len)
	if w.opcode != C.RN_IBV_WC_RECV_RDMA_WITH_IMM { // a SEND of verbs, which no peer uses
		c.Op = fabric.Send
		return true
	}
	imm := binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&w.imm_data))[:]) ^ lengthCheck(c.Len)
	switch {
	case imm&lengthMask != 0:
		return false
	case imm == sendImmediate:
		e.in.take(c)
	default:
		c.Op, c.Imm = fabric.WriteImm, imm
	}
	return true
}

// Arm does nothing if the event of the last Arm has not been taken: Wait returns for that, and each
// that is not taken stays in the kernel's memory.
func (e *endpoint) Arm() error {
	if e.queue == nil {
		return net.ErrClosed
	}
	if e.armed.Swap(true) {
		return nil
	}
	if rc := C.rn_arm(handle(e.queue)); rc != 0 {
		e.armed.Store(false)
		return e.device.deviceError("ibv_req_notify_cq", rc)
	}
	return nil
}
