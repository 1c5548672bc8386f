//go:build linux && cgo

package verbs

// Posting and polling, without an allocation: see [rdmacore.Queue].

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

var sendOpcode = [...]uint32{
	fabric.Send:     rdmacore.WriteWithImmOpcode,
	fabric.Write:    rdmacore.WriteOpcode,
	fabric.WriteImm: rdmacore.WriteWithImmOpcode,
}

// PostSend implements [fabric.Endpoint].
func (e *endpoint) PostSend(wr []fabric.WorkRequest) error {
	if e.Queue == nil {
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
	if err := e.Queue.PostSend(len(wr)); err != nil {
		return err
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
	w, s := &e.Queue.Sends[i], &e.Queue.SGEs[i]
	w.ID = wr.ID
	w.Opcode = sendOpcode[wr.Op]
	w.Flags = 0
	if wr.Signaled {
		w.Flags = rdmacore.Signaled
	}
	var imm uint32
	w.RemoteAddr, w.RKey, imm = e.target(wr)
	n := wr.Len()
	binary.BigEndian.PutUint32(w.Imm[:], imm|lengthCheck(n))

	if n == 0 {
		// irdma loads the first fragment of a write even if num_sge is 0.
		w.NumSGE, *s = 0, rdmacore.SGE{}
		return nil
	}
	w.NumSGE = 1
	s.Length = uint32(n)
	if n <= e.Inline() {
		w.Flags |= rdmacore.Inline
	}
	if wr.Memory == nil {
		if n > e.Inline() {
			return fmt.Errorf("%d bytes inline, at most %d: %w", n, e.Inline(), syscall.EMSGSIZE)
		}
		slot := e.inlineSlot(i)[:n]
		wr.CopyTo(slot)
		s.Addr, s.LKey = rdmacore.AddrOf(slot), e.key
		return nil
	}
	m, ok := wr.Memory.(*rdmacore.Memory)
	if !ok {
		return fmt.Errorf("memory of another fabric: %w", syscall.EINVAL)
	}
	addr, size := rdmacore.AddrOf(wr.Data), uint64(len(m.Bytes()))
	if off := addr - m.Addr(); off > size || uint64(n) > size-off {
		return fmt.Errorf("data outside its memory: %w", syscall.EFAULT)
	}
	s.Addr, s.LKey = addr, m.LKey()
	return nil
}

// inlineSlot is where inline data of slot i of the batch goes: registered memory that is not written to
// again before the request has completed, for there are devices that do not look at IBV_SEND_INLINE
// (mana).
func (e *endpoint) inlineSlot(i int) []byte {
	slot := int((e.posted + uint64(i)) % uint64(len(e.Queue.Sends)))
	return e.inline[slot*e.Inline():]
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

// PostRecv implements [fabric.Endpoint].
func (e *endpoint) PostRecv(n int) error {
	if e.Queue == nil {
		return net.ErrClosed
	}
	if n <= 0 {
		return nil
	}
	if n > e.options.RecvQueue {
		return fmt.Errorf("post %d receives to a queue of %d: %w", n, e.options.RecvQueue, syscall.ENOMEM)
	}
	return e.Queue.PostRecv(n)
}

// Poll implements [fabric.Endpoint].
func (e *endpoint) Poll(c []fabric.Completion) (int, error) {
	if e.Queue == nil {
		return 0, net.ErrClosed
	}
	n := e.Queue.Poll(min(len(c), len(e.Queue.WCs)))
	if n < 0 {
		return 0, fmt.Errorf("ibv_poll_cq: %w", fabric.ErrQueuePair)
	}
	for i := range n {
		if !e.decode(&c[i], &e.Queue.WCs[i]) {
			return 0, fmt.Errorf("%w: the device reports a wrong length of what has arrived", fabric.ErrQueuePair)
		}
	}
	return n, nil
}

// decode reads a completion. If it failed, only its ID, status and vendor error are
// valid. decode returns false if its length is not the one that its immediate tells.
func (e *endpoint) decode(c *fabric.Completion, w *rdmacore.WC) (ok bool) {
	*c = fabric.Completion{
		Status: fabric.Status(w.Status),
		Vendor: w.VendorErr,
	}
	if w.ID&recvBit == 0 {
		c.ID = w.ID
		return true
	}
	c.Recv = true
	if c.Status != fabric.OK {
		return true
	}
	c.Len = int(w.ByteLen)
	if w.Opcode != rdmacore.ReceivedWriteOfImm { // a SEND of verbs, which no peer uses
		c.Op = fabric.Send
		return true
	}
	imm := binary.BigEndian.Uint32(w.Imm[:]) ^ lengthCheck(c.Len)
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
