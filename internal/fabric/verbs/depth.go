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

// shape is what a queue pair is asked to be: the depths of its queues, and inline data
// in bytes.
type shape struct{ sends, recvs, inline int }

// shallower halves the longer queue of s and asks for maxInline again, since the depth
// may have been what kept the device from that much. It returns false if the queue has
// its least depth.
func (s shape) shallower() (shape, bool) {
	longer, least := &s.sends, leastSends
	if s.recvs > s.sends {
		longer, least = &s.recvs, leastRecvs
	}
	if *longer <= least {
		return s, false
	}
	*longer = max(*longer/2, least)
	s.inline = maxInline
	return s, true
}

// createQueues makes the completion queue and the queue pair. It reduces inline data
// before depth: inline data is what devices refuse, while the depth is what the program
// has asked for. The next endpoint with the same depths begins with the shape that the
// device took. If there is no memory for the depth, createQueues fails instead of
// reducing it.
func (e *endpoint) createQueues() error {
	asked := shape{e.options.SendQueue, e.options.RecvQueue, maxInline}
	s := e.manager.devices.knownShape(e.device, asked)
	for {
		err := e.createCompletionQueue(s)
		if err == nil {
			err = e.createQueuePair(C.RN_IBV_QPT_RC, e.cq, &s)
		}
		switch {
		case err == nil:
			e.manager.devices.recordShape(e.device, asked, s)
			e.options.SendQueue, e.options.RecvQueue = s.sends, s.recvs
			return nil
		case isGone(err):
			return err
		case isShortage(err):
			return fmt.Errorf("no queues of %d sends and %d receives now, though shorter ones may be had: %w", s.sends, s.recvs, err)
		}
		less, ok := s.shallower()
		if !ok {
			return fmt.Errorf("the device refuses even queues of %d sends and %d receives: %w", s.sends, s.recvs, err)
		}
		s = less
	}
}

// createCompletionQueue makes a completion queue for all the work requests of s, unless
// an earlier try, for a deeper s, has made one.
func (e *endpoint) createCompletionQueue(s shape) error {
	if e.cq != nil {
		return nil
	}
	depth := s.sends + s.recvs
	if rc := C.rn_create_cq(e.id.verbs, C.int(depth), e.channel, C.int(e.device.nextVector()), &e.cq); rc != 0 {
		return e.device.memoryError("ibv_create_cq", rc, depth*int(unsafe.Sizeof(C.struct_rn_ibv_wc{})))
	}
	return nil
}

// createQueuePair makes a queue pair with as much inline data as the device takes, at
// most s.inline. It sets s.inline to what the next endpoint is to ask for first: after a
// shortage that is more than this one got.
//
// If no try succeeds, the error is that of a queue pair without inline data.
func (e *endpoint) createQueuePair(kind C.uint, sendCQ *C.struct_rn_ibv_cq, s *shape) error {
	most, short := s.inline, false
	var err error
	for _, inline := range inlineSizes {
		if inline > most {
			continue
		}
		if !short {
			s.inline = inline
		}
		wanted := C.struct_rn_ibv_qp_cap{
			max_send_wr:     C.uint32_t(s.sends),
			max_recv_wr:     C.uint32_t(s.recvs),
			max_send_sge:    1,
			max_recv_sge:    1,
			max_inline_data: C.uint32_t(inline),
		}
		rc := C.rn_create_qp(e.pd, kind, sendCQ, e.cq, &wanted, &e.qp)
		if rc == 0 {
			e.inlineSize = min(int(wanted.max_inline_data), inline) // less may be granted, and what is more was not asked for
			return nil
		}
		if err = e.device.memoryError("ibv_create_qp", rc, s.sends*64+s.recvs*16); isGone(err) {
			return err
		}
		short = short || isShortage(err)
	}
	return err
}
