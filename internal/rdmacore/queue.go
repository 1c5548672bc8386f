//go:build linux && cgo

package rdmacore

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
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"os"
	"syscall"
	"unsafe"
)

// Queue is the way of data of a queue pair: what is posted and polled, in C memory. Sends are posted
// by one goroutine at a time, and so are receives, and polls made.
type Queue struct {
	// Sends are the work requests for PostSend, each with an SGE of SGEs.
	Sends []SendWR
	SGEs  []SGE

	// WCs has what Poll has found.
	WCs []WC

	device *device
	c      *C.struct_rn_queue
	handle C.uintptr_t // c, as C's functions of the path of data take it: cgo would look for Go pointers behind a pointer, in each call
}

// The layout of SendWR, SGE and WC is that of ibv_send_wr, ibv_sge and ibv_wc (ibv_post_send(3),
// ibv_poll_cq(3)): TestABI compares them.

// SendWR is a work request.
type SendWR struct {
	ID           uint64 // comes back in the completion
	next, sgList uintptr
	NumSGE       int32 // 1, or 0
	Opcode       uint32
	Flags        uint32
	Imm          [4]byte
	RemoteAddr   uint64 // of a write; to send by UD that of an AddressHandle
	RKey         uint32 // of a write; to send by UD the number of the receiver's queue pair
	RemoteQKey   uint32
	_            [9]uint64
}

// SGE says where the bytes of a work request are.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// WC is a completion.
type WC struct {
	ID        uint64
	Status    uint32
	Opcode    uint32 // this and what follows, but for VendorErr, if Status is Success
	VendorErr uint32
	ByteLen   uint32
	Imm       [4]byte
	qpNum     uint32
	srcQP     uint32
	Flags     uint32
	pkeyIndex uint16
	slid      uint16
	sl        uint8
	pathBits  uint8
}

// On the processor that this is compiled for, too.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(SendWR{})-C.sizeof_struct_rn_ibv_send_wr]
	_ = [1]struct{}{}[unsafe.Sizeof(SGE{})-C.sizeof_struct_rn_ibv_sge]
	_ = [1]struct{}{}[unsafe.Sizeof(WC{})-C.sizeof_struct_rn_ibv_wc]
)

// Opcodes and flags of work requests and completions.
const (
	WriteOpcode        uint32 = C.RN_IBV_WR_RDMA_WRITE
	WriteWithImmOpcode uint32 = C.RN_IBV_WR_RDMA_WRITE_WITH_IMM
	SendOpcode         uint32 = C.RN_IBV_WR_SEND

	Signaled uint32 = C.RN_IBV_SEND_SIGNALED
	Inline   uint32 = C.RN_IBV_SEND_INLINE

	Success            uint32 = C.RN_IBV_WC_SUCCESS
	ReceivedWriteOfImm uint32 = C.RN_IBV_WC_RECV_RDMA_WITH_IMM
	WithGRH            uint32 = C.RN_IBV_WC_GRH
)

// QueueOptions say how large a [Queue] is.
type QueueOptions struct {
	WCs   int // completions that one Poll takes, at most
	Sends int // work requests that are posted at once, at most

	// Recvs is how many receives there are, which are posted in turn, each with RecvSize bytes
	// at its own multiple of RecvStride in Slots. Without Slots they have no bytes. The WC of
	// receive i has the ID RecvMask | i.
	Recvs                int
	RecvMask             uint64
	Slots                *Memory
	RecvStride, RecvSize int
}

// NewQueue makes the [QueuePair.Queue] of a queue pair.
func (q *QueuePair) NewQueue(o QueueOptions) error { return q.newQueue(&q.Queue, q.cq, o) }

// NewSendQueue returns a Queue of the completion queue for sends.
func (q *QueuePair) NewSendQueue(o QueueOptions) (*Queue, error) {
	err := q.newQueue(&q.sends, q.sendCQ, o)
	return q.sends, err
}

func (q *QueuePair) newQueue(made **Queue, cq *C.struct_rn_ibv_cq, o QueueOptions) error {
	var slots unsafe.Pointer
	var lkey uint32
	if o.Slots != nil {
		slots, lkey = unsafe.Pointer(unsafe.SliceData(o.Slots.bytes)), o.Slots.lkey
	}
	c := C.rn_queue_new(q.qp, cq, C.int(o.WCs), C.int(o.Sends), C.int(o.Recvs), C.uint64_t(o.RecvMask),
		slots, C.uint32_t(o.RecvStride), C.uint32_t(o.RecvSize), C.uint32_t(lkey))
	if c == nil {
		return os.NewSyscallError("calloc", syscall.ENOMEM)
	}
	if q.device.alone {
		c.alone = 1
	}
	*made = &Queue{
		Sends:  unsafe.Slice((*SendWR)(unsafe.Pointer(c.send)), o.Sends),
		SGEs:   unsafe.Slice((*SGE)(unsafe.Pointer(c.send_sge)), o.Sends),
		WCs:    unsafe.Slice((*WC)(unsafe.Pointer(c.wc)), o.WCs),
		device: q.device,
		c:      c,
		handle: C.uintptr_t(uintptr(unsafe.Pointer(c))),
	}
	return nil
}

func (q *Queue) free() {
	if q != nil {
		C.free(unsafe.Pointer(q.c))
	}
}

// PostSend posts Sends[:n] in order. If the device takes only some of them, the queue pair goes to
// the error state.
func (q *Queue) PostSend(n int) error {
	if rc := C.rn_post_send(q.handle, C.int(n)); rc != 0 {
		return q.device.error("ibv_post_send", rc)
	}
	return nil
}

// PostRecv posts the next n receives; the same applies.
func (q *Queue) PostRecv(n int) error {
	if rc := C.rn_post_recv(q.handle, C.int(n)); rc != 0 {
		return q.device.error("ibv_post_recv", rc)
	}
	return nil
}

// Poll moves n completions to WCs, which has room for them, or all that there are if these are fewer,
// and returns how many. A number less than 0 means that the completion queue has failed.
func (q *Queue) Poll(n int) int { return int(C.rn_poll(q.handle, C.int(n))) }
