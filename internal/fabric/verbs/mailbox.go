//go:build linux && cgo

package verbs

// Sends. A Send is carried by a write with an immediate to the peer's mailbox: memory
// with a slot for each Send that the peer may not have polled yet. Then receives need no
// buffers. Otherwise each would need one, because it is not known in advance which
// receive a Send will take, and nearly all are taken by data, which does not use it. A
// mailbox is in the protection domain of its queue pair, like all memory that the peer
// may write to. (Receives with buffers cannot be shared by queue pairs with protection
// domains of their own: soft-RoCE looks for the buffer in the queue pair's, not in that
// of the shared receive queue.)

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// sendImmediate is the immediate of a write that is a Send.
const sendImmediate = 1 << 29

// slots are the slots of a mailbox. The Sends of a side use them in turn; both sides
// count them.
type slots struct {
	number int
	stride int
	used   uint64 // Sends so far
}

// next returns the offset in bytes of the next Send's slot, and counts that Send.
func (s *slots) next() int {
	at := int(s.used%uint64(s.number)) * s.stride
	s.used++
	return at
}

// inbox is the own mailbox, where the Sends of the peer arrive.
type inbox struct {
	slots
	memory *memory
	size   int    // bytes that a Send may carry
	taken  []byte // copies of polled Sends: the peer may still write to memory
	probe  []byte // what the first slot holds before a Send comes; nil: lengths are not checked
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

// slotStride is the distance in bytes between slots of size bytes: no two share a cache
// line.
func slotStride(size int) int {
	const line = 64
	return (size + line - 1) &^ (line - 1)
}

// mailboxMemory is the size of a mailbox in bytes.
func (e *endpoint) mailboxMemory(o fabric.Options) int {
	s := newSlots(o)
	n := s.number * s.stride
	if e.iwarp != nil {
		n += cellSize
	}
	return n
}

// createMailbox makes the mailbox, unless its size is 0.
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
	if e.iwarp == nil && !e.device.lengthsAreRight.Load() {
		e.in.probe = make([]byte, e.in.size)
		_, _ = rand.Read(e.in.probe) // never fails
		copy(m.bytes, e.in.probe)
	}
	return nil
}

// checkLength reports whether the first Send of an endpoint is as long as its completion
// says: a stream's bytes are found by nothing but the lengths of writes, and this is where
// one can be seen. It is done until a device has passed. A Send has overwritten the random
// bytes of its slot up to its end and no further. Those of links have 16 bytes at least, so
// they do not end in the same bytes by chance.
func (e *endpoint) checkLength(n int) bool {
	probe, slot := e.in.probe, e.in.memory.bytes
	e.in.probe = nil
	if n > len(probe) { // the peer's breach: see take
		return true
	}
	const end = 8
	right := bytes.Equal(slot[n:len(probe)], probe[n:]) && (n < end || !bytes.Equal(slot[n-end:n], probe[n-end:n]))
	if right {
		e.device.lengthsAreRight.Store(true)
	}
	return right
}

// take completes c, a write with an immediate, as the Send that it is. The peer chooses
// where its device writes, so the slot may hold anything.
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

// mailboxSize is the length in bytes of a mailbox's address and rkey, which follow the
// private data in the request and in the answer.
const mailboxSize = 12

// advertise returns private data, padded to size bytes, with the mailbox's address and
// rkey appended.
func (b *inbox) advertise(private []byte, size int) []byte {
	all := make([]byte, size, size+mailboxSize)
	copy(all, private)
	var addr uint64
	var rkey uint32
	if b.memory != nil {
		addr, rkey = b.memory.Addr(), b.memory.RKey()
	}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(all, addr), rkey)
}

// errNoMailbox reports private data in which the place of the mailbox is 0: Sends would have
// nowhere to go.
var errNoMailbox = fmt.Errorf("no mailbox is named: %w", syscall.EPROTO)

// requireMailbox rejects a peer that has named no mailbox, if this side has one.
func (e *endpoint) requireMailbox() error {
	if e.options.Sends == 0 || e.out.addr != 0 || e.out.rkey != 0 {
		return nil
	}
	_ = e.Reject(wire.Reject{Reason: "no mailbox is named"}.Append(nil))
	return errNoMailbox
}

// parse takes the address and the rkey of the peer's mailbox from all, and returns the
// private data in front of them, size bytes. If all is too short for them, the peer has
// no mailbox.
func (b *outbox) parse(all []byte, size int) (private []byte) {
	if len(all) < size+mailboxSize {
		return all
	}
	b.addr, b.rkey = binary.BigEndian.Uint64(all[size:]), binary.BigEndian.Uint32(all[size+8:])
	return all[:size:size]
}
