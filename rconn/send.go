package rconn

import (
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// A work request carries maxMessage bytes at most. As many as worthwhile do not
// wait for more: they take some microseconds at 100 Gb/s, so that the cost of a
// request vanishes, and the peer can copy them while the next are on their way.
const (
	maxMessage = 256 << 10
	worthwhile = 64 << 10
)

// maxBatch is how many work requests are posted, or completions polled, at a
// time. What a call to the device costs is little to each of so many.
const maxBatch = 16

// burst is how many messages leave one by one, unless something arrives
// meanwhile. What is written after them goes together with what follows until
// they have completed.
const burst = 3

// kind is what a work request is for.
type kind uint8

const (
	data kind = iota
	creditControl
	finControl
	finAckControl
	resetControl
	probe // zero-byte write that only the peer's device sees
	kinds
)

// controlMemory is room for one control message of each kind, behind the
// staging ring. Of each kind only one is ever outstanding, so its place is free
// again when it is needed.
const controlMemory = int(kinds) * wire.ControlSize

// sendQueue is the sending half of a connection: the bytes accepted and the
// work requests that carry them. Guarded by Conn.mu.
type sendQueue struct {
	sender  credit.Sender
	slots   credit.Slots
	entries []entry // of outstanding work requests, by number modulo length, a power of two
	batch   []fabric.WorkRequest

	memory  fabric.Memory // the staging ring, then controlMemory
	staging *ring.Ring    // bytes accepted and not known to have been sent
	quiet   int           // bytes of staging posted since the last signaled work request

	peer  wire.Hello // where the peer's ring is
	most  int        // bytes that a work request carries
	chunk int        // bytes that are worth a work request of their own

	// ahead is how many work requests have to complete before a little data is
	// sent: all up to the last signaled one with data.
	ahead uint64

	// streak is how many messages have left since one arrived. With none the
	// send queue is most likely idle. A hint; slots are freed by their
	// completions alone.
	streak int

	// How long a post takes, at best of the first timedPosts that let go of mu.
	timed    int
	postTime time.Duration

	probeDue bool        // the peer's device is to be asked for a sign of life
	probed   time.Time   // when it was last asked
	out      [kinds]bool // posted and not completed
	sent     [kinds]bool // completed at least once
}

type entry struct {
	kind    kind
	staging uint64 // the staging ring is free up to here once this completes
}

// A device that takes longer over a little than it takes to wake the dispatcher
// is slow: soft-RoCE does all the work of a transfer within the post, and has
// completed it then. Left to the dispatcher, it goes on while the application
// writes more. A fabric that takes everything inline copies within the post
// what need not be copied before it.
const (
	slowPost   = 5 * time.Microsecond
	timedPosts = 8
)

// handsOver says whether the next bytes are the dispatcher's to send.
func (c *Conn) handsOver() bool {
	return c.streak >= burst && c.timed == timedPosts && c.postTime > slowPost && c.limits.Inline < c.chunk
}

// callDispatcher has the dispatcher send what there is to send.
func (c *Conn) callDispatcher() {
	if !c.dispatching {
		c.dispatching = true
		c.ep.Wake()
	}
}

// sendNow sends p inline, without a copy to the staging ring, if nothing is in
// the way and nothing would be won by waiting. Called with mu held.
func (c *Conn) sendNow(p []byte) bool {
	if c.posting || c.sender.Pending() > 0 || !c.slots.Completed(c.ahead) || !c.sender.MaySend() || !c.slots.MaySend() ||
		ring.Contiguous(c.sender.Position(), len(p), c.peer.Ring) < len(p) {
		return false
	}
	c.sender.Accept(len(p))
	c.pushData(p, nil)
	if len(p) <= copyLocked && c.timed == timedPosts {
		c.submitted(c.ep.PostSend(c.batch)) // as long as letting go would take
	} else if c.post(); c.again || c.armWanted {
		c.turn(true) // as the notes say that were left meanwhile
	}
	c.batch[:1][0].Data = nil // it is the caller's
	return true
}

// fill puts into the batch whatever there is to send and may be sent now. It
// says whether there is more than a batch has room for.
func (c *Conn) fill() (more bool) {
	if c.cause != nil {
		return false
	}
	// Smart batching: a little waits while data is under way whose completion
	// will bring us here again, and goes with what has been written by then.
	if pending := c.sender.Pending(); pending > 0 && (pending >= c.chunk || c.slots.Completed(c.ahead) || c.writeClosed) {
		for pending > 0 && c.sender.MaySend() && c.slots.MaySend() {
			if len(c.batch) == maxBatch-credit.ControlSends {
				more = true
				break
			}
			p := c.staging.Bytes(c.staging.Head()-uint64(pending), min(pending, c.most))
			n := ring.Contiguous(c.sender.Position(), len(p), c.peer.Ring)
			c.pushData(p[:n], c.memory)
			pending -= n
		}
	}
	if c.receiver.Due() || c.peerFin || c.writeClosed || c.probeDue {
		c.pushControl()
	}
	return more
}

// pushData adds a data message to the batch.
func (c *Conn) pushData(p []byte, memory fabric.Memory) {
	at := c.peer.Addr + uint64(ring.Offset(c.sender.Position(), c.peer.Ring))
	c.sender.Send(len(p))
	if memory != nil {
		c.quiet += len(p)
	}
	// Signal before anything could wait: for a slot, for staging memory, or,
	// after a burst, for the end of what is under way.
	signaled := c.sender.Pending() > 0 || c.writeClosed ||
		c.slots.Unsignaled()+1 >= burst && c.streak > 0 ||
		c.slots.Unsignaled()+1 >= c.slots.Depth()/4 ||
		c.quiet >= c.staging.Size()/4
	c.streak++
	c.stats.MessagesSent++
	wr := c.push(data, signaled)
	wr.Op, wr.Imm = fabric.WriteImm, wire.Immediate(len(p))
	wr.Data, wr.Memory = p, memory
	wr.RemoteAddr, wr.RKey = at, c.peer.RKey
	if signaled {
		c.ahead = wr.ID + 1
	}
}

// pushControl adds the control messages that are due to the batch.
func (c *Conn) pushControl() {
	if c.receiver.Due() && (c.spent == 0 || c.repost(c.spent)) {
		c.spent = 0
		consumed, reposted := c.receiver.Advertise()
		c.stats.CreditsSent++
		c.pushMessage(creditControl, wire.Control{Type: wire.Credit, Bytes: consumed, Messages: reposted})
	}
	if c.peerFin && !c.said(finAckControl) {
		c.pushMessage(finAckControl, wire.Control{Type: wire.FinAck})
	}
	if c.probeDue && !c.out[probe] {
		c.out[probe] = true
		c.probed = time.Now()
		c.stats.Probes++
		wr := c.push(probe, true)
		// Nothing is written, but a device may look at where to all the same.
		wr.Op, wr.RemoteAddr, wr.RKey = fabric.Write, c.peer.Addr, c.peer.RKey
	}
	c.probeDue = false
	if c.sender.Pending() > 0 || !c.writeClosed {
		return
	}
	switch {
	case c.unread && !c.said(resetControl):
		c.pushMessage(resetControl, wire.Control{Type: wire.Reset, Bytes: c.sender.Position()})
	case !c.unread && !c.said(finControl):
		c.pushMessage(finControl, wire.Control{Type: wire.Fin, Bytes: c.sender.Position()})
	}
}

func (c *Conn) said(k kind) bool { return c.out[k] || c.sent[k] }

func (c *Conn) pushMessage(k kind, m wire.Control) {
	at := c.staging.Size() + int(k)*wire.ControlSize
	b := c.memory.Bytes()[at : at+wire.ControlSize]
	m.Put(b)
	c.out[k] = true
	wr := c.push(k, true)
	wr.Op, wr.Data, wr.Memory = fabric.Send, b, c.memory
}

// push adds a work request to the batch, for the caller to fill in.
func (c *Conn) push(k kind, signaled bool) *fabric.WorkRequest {
	c.batch = c.batch[:len(c.batch)+1]
	wr := &c.batch[len(c.batch)-1]
	*wr = fabric.WorkRequest{ID: c.slots.Post(), Signaled: signaled}
	*c.entry(wr.ID) = entry{k, c.staging.Head() - uint64(c.sender.Pending())}
	if signaled {
		c.slots.Signal()
		c.quiet = 0
		c.stats.Signaled++
	}
	c.stats.WorkRequests++
	return wr
}

// entry is what is remembered of an outstanding work request.
func (c *Conn) entry(id uint64) *entry { return &c.entries[id&uint64(len(c.entries)-1)] }

// post hands the batch to the device without mu, for that may take long: a
// device that copies, or that is software, does then what it has to do. Nobody
// else uses the endpoint meanwhile.
func (c *Conn) post() {
	start := time.Now()
	c.posting = true
	c.mu.Unlock()
	err := c.ep.PostSend(c.batch)
	took := time.Since(start)
	c.mu.Lock()
	c.posting = false
	c.posted.Broadcast()
	if c.timed < timedPosts {
		c.timed++
		c.postTime = min(c.postTime, took)
	}
	c.submitted(err)
}

// submitted ends what PostSend has begun.
func (c *Conn) submitted(err error) {
	c.batch = c.batch[:0]
	if err != nil {
		c.lose(lost(err))
	}
}

// sendCompleted takes back what the work request, and those before it, held.
func (c *Conn) sendCompleted(id uint64) {
	e := *c.entry(id)
	c.slots.Complete(id)
	c.staging.Release(e.staging)
	if e.kind != data {
		c.out[e.kind], c.sent[e.kind] = false, true
	}
	if e.kind == creditControl {
		c.receiver.Completed()
	}
}
