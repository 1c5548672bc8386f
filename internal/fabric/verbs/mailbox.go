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
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
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
	memory *rdmacore.Memory
	size   int    // bytes that a Send may carry
	taken  []byte // copies of polled Sends: the peer may still write to memory
}

// outbox is the peer's inbox.
type outbox struct {
	slots
	addr uint64
	rkey uint32
}

func newSlots(o fabric.Options) slots {
	return slots{number: o.Sends, stride: rdmacore.Stride(o.RecvSize)}
}

// mailboxMemory is the size of a mailbox in bytes.
func mailboxMemory(o fabric.Options) int {
	s := newSlots(o)
	return s.number * s.stride
}

func (e *endpoint) createMailbox() error {
	n := mailboxMemory(e.options)
	m, err := e.QueuePair.Register(n, rdmacore.RemoteWrite)
	if err != nil {
		return err
	}
	e.in = inbox{slots: newSlots(e.options), memory: m, size: e.options.RecvSize, taken: make([]byte, n)}
	e.out.slots = newSlots(e.options)
	return nil
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
	copy(slot, b.memory.Bytes()[at:])
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
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(all, b.memory.Addr()), b.memory.RKey())
}

// errNoMailbox reports private data in which the place of the mailbox is 0: Sends would have
// nowhere to go.
var errNoMailbox = fmt.Errorf("no mailbox is named: %w", syscall.EPROTO)

// requireMailbox rejects a peer that has named no mailbox.
func (e *endpoint) requireMailbox() error {
	if e.out.addr != 0 || e.out.rkey != 0 {
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
