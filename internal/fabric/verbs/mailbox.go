//go:build linux && cgo

package verbs

// Sends. A Send is carried by a write with an immediate, to a mailbox of the
// peer's: memory with a slot for each Send that the peer may not have taken yet.
// A receive then needs no buffer: which of those posted takes a Send is not known
// beforehand, so that otherwise each had one, of which nearly all are taken by
// data, which has no use for it. A mailbox is in the protection domain of its
// queue pair, as all that a peer may write to. (Receives with buffers cannot be
// shared by queue pairs with protection domains of their own: soft-RoCE looks for
// the buffer in the queue pair's, not in that of the shared receive queue.)

import (
	"encoding/binary"

	"github.com/ringnet/ringnet/internal/fabric"
)

// sendImmediate is the immediate of a write that is a Send.
const sendImmediate = 1 << 29

// slots are those of a mailbox. The Sends of a side use them in turn, and both
// sides count.
type slots struct {
	number int
	stride int
	used   uint64 // Sends
}

// next is the place of the next Send.
func (s *slots) next() int {
	at := int(s.used%uint64(s.number)) * s.stride
	s.used++
	return at
}

// inbox is where the Sends of the peer arrive.
type inbox struct {
	slots
	memory *memory
	size   int    // bytes that a Send may carry
	taken  []byte // copies: what has arrived the peer may still write to
}

// outbox is the peer's inbox.
type outbox struct {
	slots
	addr uint64
	rkey uint32
}

func newSlots(o fabric.Options) slots {
	return slots{number: o.Sends, stride: slotStride(o.RecvSize)}
}

// slotStride is the distance of slots for so many bytes: no two share a cache
// line.
func slotStride(size int) int {
	const line = 64
	return (size + line - 1) &^ (line - 1)
}

// mailboxMemory is how many bytes a mailbox takes.
func (e *endpoint) mailboxMemory(o fabric.Options) int {
	s := newSlots(o)
	n := s.number * s.stride
	if e.iwarp != nil {
		n += cellSize
	}
	return n
}

// createMailbox makes the mailbox, if Sends are to be received.
func (e *endpoint) createMailbox() error {
	n := e.mailboxMemory(e.options)
	if n == 0 {
		return nil
	}
	access := fabric.RemoteWrite
	if e.iwarp != nil {
		access = readable
	}
	m, err := e.register(n, access)
	if err != nil {
		return err
	}
	e.in = inbox{slots: newSlots(e.options), memory: m, size: e.options.RecvSize, taken: make([]byte, n)}
	e.out.slots = newSlots(e.options)
	return nil
}

// take completes c, a write with an immediate, as the Send that it is. The peer's
// device has written where the peer had it write: what there is in the slot is the
// peer's word, whatever it may be.
func (b *inbox) take(c *fabric.Completion) {
	at := b.next()
	c.Op = fabric.Send
	if c.Len > b.size {
		*c = fabric.Completion{Recv: true, Status: fabric.LocalLength}
		return
	}
	slot := b.taken[at : at+c.Len : at+b.stride]
	copy(slot, b.memory.bytes[at:])
	c.Data = slot
}

// mailboxSize is the size of what tells the peer of a mailbox, in bytes: address
// and key, behind the private data of the request and of the answer.
const mailboxSize = 12

// tell appends to private data, with room for most bytes, where the mailbox is.
func (b *inbox) tell(private []byte, most int) []byte {
	all := make([]byte, most, most+mailboxSize)
	copy(all, private)
	var addr uint64
	var rkey uint32
	if b.memory != nil {
		addr, rkey = b.memory.Addr(), b.memory.RKey()
	}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(all, addr), rkey)
}

// hear takes from what the peer has told where its mailbox is, and returns the
// private data. A peer that tells too little has none.
func (b *outbox) hear(all []byte, most int) (private []byte) {
	if len(all) < most+mailboxSize {
		return all
	}
	b.addr, b.rkey = binary.BigEndian.Uint64(all[most:]), binary.BigEndian.Uint32(all[most+8:])
	return all[:most:most]
}
