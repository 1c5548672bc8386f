//go:build linux && cgo

package verbs

// How deep the queues of an endpoint are, and how much inline data they carry.
// Providers refuse what they cannot do, with one errno or another or none, and
// do not tell how much they could: so less is asked for until they agree. What
// they cannot do now, because others have the memory, is another matter: see
// isShortage.

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// inlineSizes are the sizes of inline data that are asked for. More than the
// first would make every slot of the send queue larger for little gain: copying
// by the CPU stops being cheaper than a DMA read around there. 220 is what
// perftest asks for; qedr takes 128, irdma 101, bnxt_re 96.
var inlineSizes = [...]int{maxInline, 220, 128, 101, 96, 64, 48, 32, 0}

const (
	maxInline = 256

	// leastSends and leastRecvs are how deep the queues have to be for anything to
	// be gained by asking for them: a link does not work with less.
	leastSends = 16
	leastRecvs = 18
)

// shape is what a queue pair is asked to be.
type shape struct{ sends, recvs, inline int }

// shallower is s with the longer queue of half its length and all the inline
// data again, for it may have been the depth that was too much of it.
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

// createQueues makes the completion queue and the queue pair. Inline data is
// given up before depth: it is what devices refuse, and nobody has asked for it,
// while the depth is the program's. What the device agrees to is where the next
// endpoint begins that is to be as deep. A program that gets no memory for the
// depth that it wants is told, instead of getting less of it.
func (e *endpoint) createQueues() error {
	asked := shape{e.options.SendQueue, e.options.RecvQueue, maxInline}
	s := e.manager.devices.agreed(e.device, asked)
	for {
		err := e.createCompletionQueue(s)
		if err == nil {
			s, err = e.createQueuePair(s)
		}
		switch {
		case err == nil:
			e.manager.devices.agree(e.device, asked, s)
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

// createCompletionQueue makes one for all the work requests of s, unless there
// is one, for a deeper s then.
func (e *endpoint) createCompletionQueue(s shape) error {
	if e.cq != nil {
		return nil
	}
	parts := e.partsOf(s)
	depth := parts.sends + parts.recvs
	if rc := C.rn_create_cq(e.id.verbs, C.int(depth), e.channel, C.int(e.device.nextVector()), &e.cq); rc != 0 {
		return memoryError("ibv_create_cq", rc, depth*int(unsafe.Sizeof(C.struct_rn_ibv_wc{})))
	}
	return nil
}

// createQueuePair makes one with as much inline data as the device takes, s.inline
// at most. It returns s with the inline data to begin with the next time: after
// a shortage there may be more of it again.
//
// The error is that of a queue pair without inline data, which has nothing to do
// with it any more.
func (e *endpoint) createQueuePair(s shape) (shape, error) {
	most, short := s.inline, false
	var err error
	for _, inline := range inlineSizes {
		if inline > most {
			continue
		}
		if !short {
			s.inline = inline
		}
		if err = e.tryQueuePair(e.partsOf(s), inline); err == nil || isGone(err) {
			break
		}
		short = short || isShortage(err)
	}
	return s, err
}

func (e *endpoint) tryQueuePair(s shape, inline int) error {
	wanted := C.struct_rn_ibv_qp_cap{
		max_send_wr:     C.uint32_t(s.sends),
		max_recv_wr:     C.uint32_t(s.recvs),
		max_send_sge:    1,
		max_recv_sge:    1,
		max_inline_data: C.uint32_t(inline),
	}
	if rc := C.rn_create_qp(e.pd, C.RN_IBV_QPT_RC, e.cq, e.cq, &wanted, &e.qp); rc != 0 {
		return memoryError("ibv_create_qp", rc, s.sends*64+s.recvs*16)
	}
	e.inlineSize = min(int(wanted.max_inline_data), maxInline)
	return nil
}
