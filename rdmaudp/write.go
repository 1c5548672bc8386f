package rdmaudp

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/crossing"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/rdmaudp/internal/ud"
)

// maxPost is how many datagrams are handed to the fabric at a time, at most.
const maxPost = 64

// sender is a PacketConn's state for writing.
type sender struct {
	ctx    context.Context // its end ends all searches for receivers
	cancel context.CancelFunc

	mu        sync.Mutex // guards what follows
	receivers map[netip.AddrPort]*receiver
	pending   int            // receivers that are being looked for
	writes    uint64         // how many datagrams have been written
	heldBytes int            // bytes that wait for receivers, headers included
	post      []ud.Datagram  // for the next send
	targets   []*receiver    // of post
	single    [1][]byte      // the buffers of a datagram with one
	resolving sync.WaitGroup // the goroutines that look for receivers
}

func (s *sender) init() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.receivers = make(map[netip.AddrPort]*receiver)
}

// finish waits, closeWithin at most, until c looks for no receiver, and closes all handles.
// Called when no write is under way or begins any more.
func (s *sender) finish() {
	timer := time.AfterFunc(closeWithin, s.cancel)
	s.resolving.Wait()
	timer.Stop()
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.receivers {
		r.handle.Close()
	}
	clear(s.receivers)
}

// Write sends p as one datagram to the address that c was dialed to. It does not wait for
// the receiver; it waits until the device has sent earlier datagrams.
func (c *PacketConn) Write(p []byte) (int, error) {
	if !c.remote.IsValid() {
		return 0, c.opError("write", c.noDestination())
	}
	return c.writeOne(p, c.remote, c.peerAddr)
}

// WriteTo sends p as one datagram to an address: an [Addr], a *net.UDPAddr, or
// anything else with a method AddrPort. It waits as Write does. If c has not sent to the
// address before, or not for long, the datagram is sent once c has found its receiver. There is
// no broadcast: for 255.255.255.255 the error wraps errors.ErrUnsupported.
func (c *PacketConn) WriteTo(p []byte, to net.Addr) (int, error) {
	at, err := addrPortOf(to)
	if err != nil {
		return 0, c.opErrorAt("write", to, err)
	}
	return c.writeTo(p, at, to)
}

// WriteToUDPAddrPort does what WriteTo does, as the method of package net's UDPConn.
func (c *PacketConn) WriteToUDPAddrPort(p []byte, to netip.AddrPort) (int, error) {
	return c.writeTo(p, to, nil)
}

func (c *PacketConn) writeTo(p []byte, at netip.AddrPort, to net.Addr) (int, error) {
	if c.remote.IsValid() {
		return 0, c.opErrorAt("write", to, net.ErrWriteToConnected)
	}
	at, err := c.target(at)
	if err != nil {
		return 0, c.opErrorAt("write", to, err)
	}
	return c.writeOne(p, at, to)
}

func (c *PacketConn) writeOne(p []byte, at netip.AddrPort, to net.Addr) (int, error) {
	crossing.Release()
	s := &c.sender
	s.mu.Lock()
	defer s.mu.Unlock()
	s.single[0] = p
	n, err := c.enqueue(s.single[:], at)
	c.send()
	s.single[0] = nil
	if err != nil {
		return 0, c.opErrorAt("write", to, err)
	}
	return n, nil
}

// WriteBatch sends each message as one datagram, and sets its N. It returns how many it has
// sent: if not all, the error is that of the next. Flags must be 0.
func (c *PacketConn) WriteBatch(ms []Message, flags int) (int, error) {
	if flags != 0 {
		return 0, c.opError("write", syscall.EINVAL)
	}
	crossing.Release()
	s := &c.sender
	s.mu.Lock()
	defer s.mu.Unlock()
	defer c.send()
	for i := range ms {
		m := &ms[i]
		at, err := c.destination(m.Addr)
		if err == nil {
			m.N, err = c.enqueue(m.Buffers, at)
		}
		if err != nil {
			return i, c.opErrorAt("write", m.Addr, err)
		}
		m.NN = 0
	}
	return len(ms), nil
}

// destination returns the address to send a message to, whose Addr is to.
func (c *PacketConn) destination(to net.Addr) (netip.AddrPort, error) {
	switch {
	case c.remote.IsValid() && to != nil:
		return netip.AddrPort{}, net.ErrWriteToConnected
	case c.remote.IsValid():
		return c.remote, nil
	case to == nil:
		return netip.AddrPort{}, c.noDestination()
	}
	at, err := addrPortOf(to)
	if err != nil {
		return at, err
	}
	return c.target(at)
}

// noDestination returns the error of a write without an address on a PacketConn that was not
// dialed.
func (c *PacketConn) noDestination() error {
	if c.isClosed() {
		return net.ErrClosed
	}
	return syscall.EDESTADDRREQ
}

// enqueue adds a datagram to those that send sends next, or, if its receiver has not been
// found, to those that wait for it, and returns how many bytes it has. Called with mu held.
func (c *PacketConn) enqueue(buffers [][]byte, at netip.AddrPort) (n int, err error) {
	s := &c.sender
	if err := c.callError(c.writeDeadline); err != nil {
		return 0, err
	}
	if n = ud.Size(buffers); n > c.limits.MaxMessage {
		return 0, &tooLongError{n, c.limits.MaxMessage}
	}
	if len(s.post) == maxPost {
		c.send()
	}
	r := c.receiver(at)
	s.writes++
	if r.handle == nil {
		c.hold(r, buffers)
	} else {
		r.used = s.writes
		s.post = append(s.post, ud.Datagram{To: r.handle, Buffers: buffers})
		s.targets = append(s.targets, r)
		c.number(&s.post[len(s.post)-1], r)
	}
	return n, nil
}

// number gives a datagram the next sequence number of its receiver. Called with mu held.
func (c *PacketConn) number(d *ud.Datagram, r *receiver) {
	ud.Header{SourcePort: c.port, Sequence: r.sequence}.Put(&d.Header)
	r.sequence++
}

// send sends the datagrams in post. If a receiver has ended its handle, c looks for it
// again, and its datagrams wait meanwhile. Called with mu held.
func (c *PacketConn) send() {
	s := &c.sender
	if len(s.post) == 0 {
		return
	}
	c.endpoint.Send(s.post)
	for i := range s.post {
		d, r := &s.post[i], s.targets[i]
		if c.countSent(d) {
			continue
		}
		if r.handle == d.To {
			r.handle.Close()
			r.handle, r.sequence = nil, 0
			c.resolve(r)
		}
		if s.receivers[r.at] != r { // given up, to look for others of post
			c.counters.dropped.Add(1)
			continue
		}
		c.hold(r, d.Buffers)
	}
	clear(s.post)
	clear(s.targets)
	s.post, s.targets = s.post[:0], s.targets[:0]
}

// countSent counts a datagram that Send has tried to send. It returns false if its handle
// cannot be used any more.
func (c *PacketConn) countSent(d *ud.Datagram) bool {
	switch d.Status {
	case fabric.OK:
		c.counters.sent.Add(1)
		c.counters.bytesSent.Add(uint64(ud.Size(d.Buffers)))
	case fabric.Flushed:
		return false
	default:
		c.counters.refused.Add(1)
	}
	return true
}
