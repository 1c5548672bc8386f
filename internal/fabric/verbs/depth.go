//go:build linux && cgo

package verbs

// How deep the queues of an endpoint are, and how much inline data they carry. A
// provider that cannot make what it is asked for fails with any errno, or with none, and
// does not tell its limit: therefore createQueues asks for less until the provider
// succeeds. If it fails for a shortage, because others have the memory, it is not asked
// for less: see isShortage.

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

// inlineSizes are the sizes of inline data to ask for, in bytes, the largest first. A
// larger one still would make every slot of the send queue larger for little gain:
// copying by the CPU stops being cheaper than a DMA read around there. 220 is what
// perftest asks for; qedr takes 128, irdma 101, bnxt_re 96.
var inlineSizes = [...]int{maxInline, 220, 128, 101, 96, 64, 48, 32, 0}

const (
	maxInline = 256

	// leastSends and leastRecvs are the least depths worth asking for: a link does not
	// work with less.
	leastSends = 16
	leastRecvs = 18
)

// makeShallower halves the longer queue. It returns false if that has its least depth.
func makeShallower(o *fabric.Options) bool {
	longer, least := &o.SendQueue, leastSends
	if o.RecvQueue > o.SendQueue {
		longer, least = &o.RecvQueue, leastRecvs
	}
	if *longer <= least {
		return false
	}
	*longer = max(*longer/2, least)
	return true
}

// createQueues makes the completion queue and the queue pair. It reduces inline data
// before depth: inline data is what devices refuse, while the depth is what the program
// has asked for. If there is no memory for the depth, createQueues fails instead of
// reducing it.
func (e *endpoint) createQueues() error {
	for {
		sends, recvs := e.options.SendQueue, e.options.RecvQueue
		err := e.createCompletionQueue(sends + recvs)
		if err == nil {
			err = e.createQueuePair(C.RN_IBV_QPT_RC, e.cq, sends, recvs)
		}
		switch {
		case err == nil, isGone(err):
			return err
		case isShortage(err):
			return fmt.Errorf("no queues of %d sends and %d receives now, though shorter ones may be had: %w", sends, recvs, err)
		case !makeShallower(&e.options):
			return fmt.Errorf("the device refuses even queues of %d sends and %d receives: %w", sends, recvs, err)
		}
	}
}

// createCompletionQueue makes a completion queue, unless an earlier try has made one, which is
// deeper.
func (e *endpoint) createCompletionQueue(depth int) error {
	if e.cq != nil {
		return nil
	}
	if rc := C.rn_create_cq(e.id.verbs, C.int(depth), e.channel, C.int(e.device.nextVector()), &e.cq); rc != 0 {
		return e.device.memoryError("ibv_create_cq", rc, depth*int(unsafe.Sizeof(C.struct_rn_ibv_wc{})))
	}
	return nil
}

// createQueuePair makes a queue pair with as much inline data as the device takes. Most providers
// refuse more without asking the kernel (docs/verbs.md), so no connection remembers what it was.
//
// If no try succeeds, the error is that of a queue pair without inline data.
func (e *endpoint) createQueuePair(kind C.uint, sendCQ *C.struct_rn_ibv_cq, sends, recvs int) error {
	var err error
	for _, inline := range inlineSizes {
		wanted := C.struct_rn_ibv_qp_cap{
			max_send_wr:     C.uint32_t(sends),
			max_recv_wr:     C.uint32_t(recvs),
			max_send_sge:    1,
			max_recv_sge:    1,
			max_inline_data: C.uint32_t(inline),
		}
		rc := C.rn_create_qp(e.pd, kind, sendCQ, e.cq, &wanted, &e.qp)
		if rc == 0 {
			e.inlineSize = min(int(wanted.max_inline_data), inline) // less may be granted, and what is more was not asked for
			return nil
		}
		if err = e.device.memoryError("ibv_create_qp", rc, sends*64+recvs*16); isGone(err) {
			return err
		}
	}
	return err
}
