package link

import (
	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// sendQueue is what a link has to send and has sent. Guarded by Link.mu.
type sendQueue struct {
	slots   credit.Slots
	staging staging
	buffers map[*Buffer]struct{} // of this link's that are not freed
	waiting
	control control
	window  sendWindow

	batch           []fabric.WorkRequest
	records         [wire.MaxRecords]wire.Record // of the message that pushRecords makes; no stack has to grow for them
	batchBytes      int                          // in batch
	posting         bool                         // a goroutine is in PostSend, without mu, and looks again after it
	unsignaledBytes int                          // of staging posted since the last signaled work request
}

// waiting is which streams wait for something of the send queue. outbox has whether a
// stream is in a line.
type waiting struct {
	withData     queue[*Stream] // with data to send
	withRecords  queue[*Stream] // with records to send
	stagingLine  queue[*Stream] // whose Writes wait for staging memory, or have
	awaitingEnds []*Stream      // whose Close waits for the completion of its end
}

// control is the control messages of a link.
type control struct {
	records controlSends   // with records
	credits controlSends   // with link credit alone
	probes  controlSends   // that ask for a sign of life
	target  wire.RingPlace // that probes name
}

// controlSends are control messages of one kind, each with a buffer that is used
// again when its work request has completed.
type controlSends struct {
	buffers []byte   // wire.MessageSize bytes for each
	after   []uint64 // of each: work requests that have to complete before
	next    int
}

// free reports whether the next buffer may be used.
func (c *controlSends) free(slots *credit.Slots) bool { return slots.Completed(c.after[c.next]) }

// take returns the next buffer, for the work request before after.
func (c *controlSends) take(after uint64) []byte {
	i := c.next
	c.after[i] = after
	c.next = (i + 1) % len(c.after)
	return c.buffers[i*wire.MessageSize:][:wire.MessageSize]
}

// ControlMemory is the memory, in bytes, for control messages, behind the staging memory.
const ControlMemory = (credit.RecordWindow + 1) * wire.MessageSize

func newSendQueue(memory fabric.Memory, size, depth int) sendQueue {
	b := memory.Bytes()
	buffers := b[size : size+ControlMemory]
	return sendQueue{
		slots:   credit.NewSlots(depth, credit.LinkControlSends),
		staging: staging{memory: memory, ring: ring.New(b[:size])},
		buffers: make(map[*Buffer]struct{}),
		batch:   make([]fabric.WorkRequest, 0, maxBatch),
		control: control{
			records: controlSends{buffers: buffers, after: make([]uint64, credit.RecordWindow)},
			credits: controlSends{buffers: buffers[credit.RecordWindow*wire.MessageSize:], after: make([]uint64, 1)},
			probes:  controlSends{after: make([]uint64, 1)},
		},
		window: sendWindow{limit: size, most: size},
	}
}

// stuck reports whether a Write waits for staging memory, and nothing under way will free any,
// because none of it is signaled. A chunk is free when the last message with its bytes has
// completed, and those behind it are not free before.
func (q *sendQueue) stuck() bool {
	return q.stagingLine.len() > 0 && q.slots.Outstanding() > 0 && q.slots.Unsignaled() == q.slots.Outstanding()
}
