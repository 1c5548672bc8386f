package pconn

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/crossing"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// maxPost is how many datagrams of a batch are sent at a time.
const maxPost = 64

// sender is what writing needs.
type sender struct {
	ctx    context.Context // ends resolving
	cancel context.CancelFunc

	mu        sync.Mutex // guards what follows
	closed    bool
	receivers map[netip.AddrPort]*receiver
	pending   int // of those that are being looked for
	searches  uint64
	writes    uint64
	held      int // bytes
	post      []fabric.Datagram
	targets   []*receiver // of post
	single    [1][]byte   // the buffers of a datagram with one
	resolving sync.WaitGroup
}

func (s *sender) init() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.receivers = make(map[netip.AddrPort]*receiver)
}

// end says false if that has been called before. Nothing is written any more.
func (s *sender) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	wasClosed := s.closed
	s.closed = true
	return !wasClosed
}

// finish sees what waits to its receivers, and gives all handles back.
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
// the receiver; over rdma it waits for the device to have sent what came before.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.remote.IsValid() {
		return 0, c.opError("write", c.noDestination())
	}
	return c.writeOne(p, c.remote, c.peerAddr)
}

// WriteTo sends p as one datagram to an address: an [rconn.Addr], a *net.UDPAddr, or
// anything else with a method AddrPort. It waits as Write does; datagrams to somebody whom c has
// not sent to before, or not for long, are sent when it has found out how.
func (c *Conn) WriteTo(p []byte, to net.Addr) (int, error) {
	at, err := addrPortOf(to)
	if err != nil {
		return 0, c.opErrorAt("write", to, err)
	}
	return c.writeTo(p, at, to)
}

// WriteToUDPAddrPort does what WriteTo does, as the method of package net's UDPConn.
func (c *Conn) WriteToUDPAddrPort(p []byte, to netip.AddrPort) (int, error) {
	return c.writeTo(p, to, nil)
}

func (c *Conn) writeTo(p []byte, at netip.AddrPort, to net.Addr) (int, error) {
	if c.remote.IsValid() {
		return 0, c.opErrorAt("write", to, net.ErrWriteToConnected)
	}
	at, err := c.target(at)
	if err != nil {
		return 0, c.opErrorAt("write", to, err)
	}
	return c.writeOne(p, at, to)
}

func (c *Conn) writeOne(p []byte, at netip.AddrPort, to net.Addr) (int, error) {
	crossing.Release()
	s := &c.sender
	s.mu.Lock()
	defer s.mu.Unlock()
	s.single[0] = p
	err := c.enqueue(s.single[:], len(p), at)
	c.send()
	s.single[0] = nil
	if err != nil {
		return 0, c.opErrorAt("write", to, err)
	}
	return len(p), nil
}

// WriteBatch sends each message as one datagram, and sets its N. It says how many it
// has sent: fewer than there are only with an error, which is that of the next. Flags
// are to be 0.
func (c *Conn) WriteBatch(ms []Message, flags int) (int, error) {
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
		n := 0
		for _, b := range m.Buffers {
			n += len(b)
		}
		if err == nil {
			err = c.enqueue(m.Buffers, n, at)
		}
		if err != nil {
			return i, c.opErrorAt("write", m.Addr, err)
		}
		m.N, m.NN = n, 0
	}
	return len(ms), nil
}

// destination is where a message with an address goes.
func (c *Conn) destination(to net.Addr) (netip.AddrPort, error) {
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

// noDestination is the error of a write that does not say where to, of a Conn that was not
// dialed.
func (c *Conn) noDestination() error {
	if c.isClosed() {
		return net.ErrClosed
	}
	return syscall.EDESTADDRREQ
}

// enqueue has a datagram of n bytes sent by the next send, or when its receiver is
// found. Called with mu held.
func (c *Conn) enqueue(buffers [][]byte, n int, at netip.AddrPort) error {
	s := &c.sender
	if err := c.obstacle(c.writeDeadline); err != nil {
		return err
	}
	switch {
	case s.closed:
		return net.ErrClosed
	case n > c.limits.MaxMessage:
		return &tooLongError{n, c.limits.MaxMessage}
	}
	if len(s.post) == maxPost {
		c.send()
	}
	r := c.receiver(at)
	s.writes++
	if r.handle == nil {
		c.hold(r, buffers, n)
	} else {
		r.used = s.writes
		s.post = append(s.post, fabric.Datagram{To: r.handle, Buffers: buffers})
		s.targets = append(s.targets, r)
		c.number(&s.post[len(s.post)-1], r)
	}
	return nil
}

// number gives a datagram the next sequence number.
func (c *Conn) number(d *fabric.Datagram, r *receiver) {
	wire.DatagramHeader{SourcePort: c.port, Sequence: r.sequence}.Put(&d.Header)
	r.sequence++
}

// send sends what is to be sent. What is for receivers that have gone waits for their
// successors. Called with mu held.
func (c *Conn) send() {
	s := &c.sender
	if len(s.post) == 0 {
		return
	}
	c.endpoint.Send(s.post)
	for i := range s.post {
		d, r := &s.post[i], s.targets[i]
		if c.sent(d) {
			continue
		}
		if r.handle == d.To {
			r.handle.Close()
			r.handle, r.sequence = nil, 0
			c.resolve(r)
		}
		if s.receivers[r.at] != r { // given up, for others of these have gone as well
			c.counters.dropped.Add(1)
			continue
		}
		n := 0
		for _, b := range d.Buffers {
			n += len(b)
		}
		c.hold(r, d.Buffers, n)
	}
	clear(s.post)
	clear(s.targets)
	s.post, s.targets = s.post[:0], s.targets[:0]
}

// sent counts a datagram, or returns false if its receiver has gone.
func (c *Conn) sent(d *fabric.Datagram) bool {
	switch d.Status {
	case fabric.OK:
		c.counters.sent.Add(1)
		for _, b := range d.Buffers {
			c.counters.bytesSent.Add(uint64(len(b)))
		}
	case fabric.Flushed:
		return false
	default:
		c.counters.refused.Add(1)
	}
	return true
}
