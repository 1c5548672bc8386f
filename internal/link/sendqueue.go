package link

import (
	"math"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// sendQueue is what a link has to send and has sent. Guarded by Link.mu.
type sendQueue struct {
	slots   credit.Slots
	staging staging
	buffers map[*Buffer]struct{} // of this link's that are not closed
	streams queue[*Stream]       // with data to send, that are in a conversation
	busy    queue[*Stream]       // with data to send, others
	talkers queue[*Stream]       // with records to send
	short   queue[*Stream]       // whose Writes wait for staging memory, or have
	ending  []*Stream            // whose Close waits for the completion of its end

	batch   []fabric.WorkRequest
	bytes   int  // in batch
	posting bool // somebody is in PostSend, without mu, and will look again after it
	called  bool // the engine has been asked to send
	quiet   int  // bytes of staging posted since the last signaled work request

	records controlSends // with records
	credits controlSends // with link credit alone
	probes  controlSends // that ask for a sign of life
	target  wire.RingPlace
	bulk    bulk

	// How long a post takes, at best of the first timedPosts that let go of mu.
	timed    int
	postTime time.Duration
}

// controlSends are control messages of one kind, each with a buffer that is used
// again when its work request has completed.
type controlSends struct {
	buffers []byte   // wire.MessageSize bytes for each
	after   []uint64 // of each: work requests that have to complete before
	next    int
}

// free says whether the next buffer may be used.
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
	control := b[size : size+ControlMemory]
	return sendQueue{
		slots:    credit.NewSlots(depth, credit.LinkControlSends),
		staging:  staging{memory: memory, ring: ring.New(b[:size])},
		buffers:  make(map[*Buffer]struct{}),
		batch:    make([]fabric.WorkRequest, 0, maxBatch),
		records:  controlSends{buffers: control, after: make([]uint64, credit.RecordWindow)},
		credits:  controlSends{buffers: control[credit.RecordWindow*wire.MessageSize:], after: make([]uint64, 1)},
		probes:   controlSends{after: make([]uint64, 1)},
		postTime: math.MaxInt64,
		bulk:     bulk{limit: size, most: size},
	}
}

// A device that takes longer over a little than it takes to wake the engine is
// slow: soft-RoCE does all the work of a transfer within the post, and has
// completed it then. Left to the engine, it goes on while the application writes
// more. A fabric that takes everything inline copies within the post what need
// not be copied before it.
const (
	slowPost   = 5 * time.Microsecond
	timedPosts = 8
)

func (q *sendQueue) slow() bool { return q.timed == timedPosts && q.postTime > slowPost }

// enqueue puts a stream into the queue where it belongs.
func (q *sendQueue) enqueue(s *Stream) {
	if s.conversing() {
		q.streams.push(s)
	} else {
		q.busy.push(s)
	}
}

// stuck says whether a Write waits for staging memory, and what is under way will
// free none, since none of it is signaled: a chunk may be held by the last of several
// messages that carried it, and holds all chunks behind it.
func (q *sendQueue) stuck() bool {
	return q.short.len() > 0 && q.slots.Outstanding() > 0 && q.slots.Unsignaled() == q.slots.Outstanding()
}
