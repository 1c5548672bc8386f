package rconn

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// progress takes what has completed and sends what may be sent, or has that
// done by whoever has the turn at the device. Called with mu held, by whoever
// has a moment, and after each change that gives something to send or somebody
// to wake.
func (c *Conn) progress() {
	if c.posting {
		c.again = true
		return
	}
	c.turn(true)
}

// flush is progress without a look at what has completed.
func (c *Conn) flush() {
	if c.posting {
		c.again = true
		return
	}
	c.turn(false)
}

// maxRounds bounds the work that a call does for others.
const maxRounds = 4

// turn is a turn at the device, which begins and ends with mu held. It may let
// go of mu while the device takes work requests, so others leave notes: again,
// and armWanted. Beyond maxRounds the dispatcher goes on.
func (c *Conn) turn(poll bool) {
	if c.ended {
		return
	}
	for round := 1; ; round++ {
		if c.cause != nil {
			c.cut()
		}
		if poll {
			c.reap()
		}
		more := c.fill()
		if len(c.batch) > 0 {
			c.post()
		}
		if c.armWanted || round > 1 && c.sender.Pending() > 0 {
			c.armWanted = false
			c.again = c.request() || c.again
		}
		if !more && !c.again {
			break
		}
		poll, c.again = c.again, false
		if round >= maxRounds {
			c.ep.Wake() // also if this is the dispatcher
			break
		}
	}
	if c.closed || c.cause != nil {
		c.settle()
	}
	if c.parked > 0 {
		c.wake()
	}
}

// reap takes what has completed.
func (c *Conn) reap() {
	c.rounds++
	for {
		n, err := c.ep.Poll(c.completions[:])
		if err != nil {
			c.lose(lost(err))
			c.receives = 0 // a queue that cannot be polled gives nothing back
		}
		control := 0
		for i := range c.completions[:n] {
			wc := &c.completions[i]
			if wc.Recv {
				c.receives--
			}
			switch {
			case wc.Status == fabric.OK && !wc.Recv:
				c.heard++
				c.sendCompleted(wc.ID)
			case wc.Status == fabric.OK:
				if wc.Op == fabric.WriteImm {
					c.spent++
				} else {
					control++
				}
				c.received(wc)
			case wc.Status == fabric.Flushed:
				c.flushed()
			default:
				c.lose(failed(wc))
			}
		}
		if control > 0 {
			c.repost(control)
		}
		if n < len(c.completions) {
			break
		}
	}
	if c.abandoned {
		c.receives = 0
	}
}

// repost posts again n receives that have completed. Those of control messages
// are posted at once, for the peer may always send as many; those of data just
// before the CREDIT that tells of them, for until then it may not. It says
// whether they are posted.
func (c *Conn) repost(n int) bool {
	if c.cause != nil {
		return false
	}
	if err := c.ep.PostRecv(n); err != nil {
		c.lose(lost(err))
		return false
	}
	c.receives += n
	return true
}

// flushed takes back what a queue pair in ERR gives back. It is not posted
// again, for it would come back at once. Why the queue pair failed is said by
// a request that failed, or by Wait, which Disconnect gives something to say; or
// by nobody within drainTime.
func (c *Conn) flushed() {
	if c.cause != nil || c.failed {
		return
	}
	c.failed = true
	c.limitDrain()
	if err := c.ep.Disconnect(); err != nil {
		c.lose(lost(err))
	}
}

// received takes a message of the peer's.
func (c *Conn) received(wc *fabric.Completion) {
	c.heard++
	if c.broken {
		return // nothing that follows can be made sense of
	}
	var err error
	if wc.Op == fabric.WriteImm {
		err = c.receivedData(wc)
	} else {
		err = c.receivedControl(wc)
	}
	if err != nil {
		c.broken = true
		if c.cause == syscall.ECONNRESET {
			c.cause = nil // that it disconnected, too, is the lesser news
		}
		c.lose(&ProtocolError{err.Error()})
	}
}

func (c *Conn) receivedData(wc *fabric.Completion) error {
	n, err := wire.DecodeImmediate(wc.Imm, wc.Len)
	if err != nil {
		return err
	}
	if c.peerFin || c.peerReset {
		return fmt.Errorf("%d bytes behind the end of the stream", n)
	}
	if err := c.receiver.Receive(n); err != nil {
		return err
	}
	c.stats.MessagesReceived++
	c.streak = 0
	c.inbox.Commit(n)
	if c.drop {
		c.discard()
	}
	return nil
}

// discard drops what has arrived, for nobody will read it.
func (c *Conn) discard() {
	c.inbox.Release(c.inbox.Head())
	c.receiver.Consume(c.inbox.Head())
}

func (c *Conn) receivedControl(wc *fabric.Completion) error {
	m, err := wire.DecodeControl(wc.Data)
	if err != nil {
		return err
	}
	switch m.Type {
	case wire.Credit:
		c.stats.CreditsReceived++
		return c.sender.Credit(m.Bytes, m.Messages)
	case wire.FinAck:
		if c.peerFinAck || !c.said(finControl) {
			return fmt.Errorf("%v for no FIN", m.Type)
		}
		c.peerFinAck = true
		return nil
	}
	// FIN and RESET: each ends the stream once, and RESET may follow FIN.
	if m.Bytes != c.receiver.Received() {
		return fmt.Errorf("%v after %d bytes, with %d received", m.Type, m.Bytes, c.receiver.Received())
	}
	if c.peerReset || c.peerFin && m.Type == wire.Fin {
		return fmt.Errorf("%v behind the end of the stream", m.Type)
	}
	c.peerFin = c.peerFin || m.Type == wire.Fin
	c.peerReset = m.Type == wire.Reset
	return nil
}

// lose ends the connection for the given reason, unless it has ended for
// another. What has arrived can still be read.
func (c *Conn) lose(cause error) {
	if c.cause != nil {
		return
	}
	c.cause = cause
	c.cut()
	c.limitDrain()
	c.ep.Wake() // somebody has to wait for the flushed receives
}

// drainTime bounds how long a queue pair in ERR may owe the receives posted to
// it. A device that has failed as a whole takes "to ERR" for done and flushes
// nothing (mlx5), and a completion queue that has failed delivers nothing.
const drainTime = 5 * time.Second

// limitDrain bounds the wait for what the queue pair, now in ERR, gives back.
// Called with mu held.
func (c *Conn) limitDrain() {
	if c.drain == nil {
		c.drain = time.AfterFunc(drainTime, c.drainTick)
	}
}

// drainTick ends the wait for what has not come back, and for whoever was to
// say why the queue pair failed.
func (c *Conn) drainTick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.lose(lost(fabric.ErrQueuePair))
	c.abandoned = true
	c.progress()
}

// cut moves the queue pair to ERR.
func (c *Conn) cut() {
	switch {
	case c.posting:
		c.again = true
	case !c.wasCut:
		c.wasCut = true
		if err := c.ep.Disconnect(); err != nil {
			c.receives = 0 // a queue pair that cannot go to ERR flushes nothing
		}
	}
}

// settle notices the ends: ours, when both sides have said all they had to say
// to one another, and that of the queue pair, when everything has come back.
func (c *Conn) settle() {
	if c.closed && c.drop && (c.peerReset || c.sent[resetControl] || !c.unread && c.sent[finControl] && c.peerFinAck) {
		c.lose(net.ErrClosed)
	}
	if c.cause != nil && c.receives <= 0 {
		c.ended = true
		c.drain.Stop()
		c.ep.Wake()
	}
}

// portPatience is how long a port may be down before the peer is probed. Most
// are back by then. Soft-RoCE, which finds no route while its interface is down,
// fails at once whatever is sent meanwhile.
const portPatience = 2 * time.Second

// changed takes what Wait said of the connection. Called with mu held.
func (c *Conn) changed(err error) {
	switch {
	case err == nil:
	case errors.Is(err, fabric.ErrPortDown):
		// The link may come back; if not, the probe finds out.
		time.AfterFunc(portPatience, c.probeTick)
	case errors.Is(err, fabric.ErrDeviceRemoved):
		if _, failed := c.cause.(*lostError); failed && !c.ended {
			c.cause = nil // that the device is gone is why something failed
		}
		c.lose(lost(err))
		c.abandoned = true
		c.peerGone = true
	default:
		c.lose(lost(err))
		c.peerGone = true
	}
}
