package rdmaudp

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"syscall"

	"github.com/ringnet/ringnet/internal/crossing"
	"github.com/ringnet/ringnet/internal/pollers"
	"github.com/ringnet/ringnet/rdmaudp/internal/ud"
)

// maxSources is how many sources a PacketConn remembers. For one more it forgets any of them.
const maxSources = 4096

// reader is a PacketConn's state for reading.
type reader struct {
	turn chan struct{} // has an element while a call has the turn to receive
	wake chan struct{} // has an element when a call that waits is to look again

	// Used by the call that has the turn:
	single     [1]ud.Datagram // for readOne, with buffers
	batch      []ud.Datagram  // for ReadBatch
	buffers    [][]byte
	sources    map[stream]*source
	pollCalls  int // calls of poll that have polled
	pollBudget int // how often poll polls in vain before the call sleeps
}

// stream identifies the datagrams that a sender numbers in one sequence.
type stream struct {
	from netip.AddrPort
	via  ud.Via
}

// source is what a PacketConn remembers of a stream.
type source struct {
	addr net.Addr // the sender's
	next uint32   // the sequence number of its next datagram
}

func (r *reader) init() {
	r.turn, r.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	r.buffers = make([][]byte, 1)
	r.sources = make(map[stream]*source)
}

// notify makes a call that waits in receive look again. It does not block.
func (r *reader) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// wake makes a call that waits in receive look for an error.
func (c *PacketConn) wake() { c.reader.notify() }

// Read reads the next datagram into p. Bytes that p has no room for are lost. If p is empty,
// Read reads nothing and does not wait, as package net's does.
func (c *PacketConn) Read(p []byte) (int, error) {
	if len(p) == 0 && !c.isClosed() {
		return 0, nil
	}
	n, _, _, err := c.readOne(p)
	return n, err
}

// ReadFrom reads the next datagram into p, and returns the sender's address, an [Addr]. Bytes that
// p has no room for are lost.
func (c *PacketConn) ReadFrom(p []byte) (int, net.Addr, error) {
	n, _, from, err := c.readOne(p)
	return n, from, err
}

// ReadFromUDPAddrPort does what ReadFrom does, as the method of package net's UDPConn.
func (c *PacketConn) ReadFromUDPAddrPort(p []byte) (int, netip.AddrPort, error) {
	n, from, _, err := c.readOne(p)
	return n, from, err
}

// Message is a datagram of ReadBatch and WriteBatch. It has the fields of the type of
// this name in golang.org/x/net/ipv4 and ipv6, and can be converted to and from it.
type Message struct {
	Buffers [][]byte // the bytes to write, or room for those to read
	OOB     []byte   // not used
	Addr    net.Addr // the sender's or the receiver's; nil to write on a PacketConn that was dialed
	N       int      // bytes read or written
	NN      int      // not used
	Flags   int      // MSG_TRUNC of recvmsg(2) if Buffers had no room for all of it
}

// ReadBatch waits until a datagram has arrived, reads as many as have arrived and ms has
// room for, and returns how many. Flags must be 0.
func (c *PacketConn) ReadBatch(ms []Message, flags int) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	if flags != 0 {
		return 0, c.opError("read", syscall.EINVAL)
	}
	if err := c.takeTurn(); err != nil {
		return 0, c.opError("read", err)
	}
	defer c.passTurn()
	r := &c.reader
	r.batch = slices.Grow(r.batch[:0], len(ms))[:len(ms)]
	for i := range ms {
		r.batch[i].Buffers = ms[i].Buffers
	}
	defer clear(r.batch) // which would else keep the caller's memory in use
	n, err := c.receive(r.batch)
	if err != nil {
		return 0, c.opError("read", err)
	}
	for i := range r.batch[:n] {
		d, m := &r.batch[i], &ms[i]
		room := ud.Size(m.Buffers)
		m.N, m.NN, m.Flags = min(d.Len, room), 0, 0
		if d.Len > room {
			m.Flags = msgTrunc
		}
		m.Addr = c.senderOf(d)
	}
	return n, nil
}

// senderOf returns the address of the sender of a datagram that was received. Its source may have
// been forgotten for those of later datagrams of a batch. The caller has the turn.
func (c *PacketConn) senderOf(d *ud.Datagram) net.Addr {
	if s := c.reader.sources[streamOf(d)]; s != nil {
		return s.addr
	}
	return addrOf(d.From)
}

// readOne reads one datagram, and returns the sender's address in both forms.
func (c *PacketConn) readOne(p []byte) (n int, at netip.AddrPort, from net.Addr, err error) {
	if err := c.takeTurn(); err != nil {
		return 0, at, nil, c.opError("read", err)
	}
	defer c.passTurn()
	r := &c.reader
	d := &r.single[0]
	r.buffers[0] = p
	d.Buffers = r.buffers
	_, err = c.receive(r.single[:])
	r.buffers[0] = nil
	if err != nil {
		return 0, at, nil, c.opError("read", err)
	}
	return min(d.Len, len(p)), d.From, c.senderOf(d), nil
}

// takeTurn waits until no other call receives. The caller returns the turn with passTurn.
func (c *PacketConn) takeTurn() error {
	select {
	case c.reader.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.reader.turn <- struct{}{}:
		return nil
	case <-c.readDeadline.Done():
		return os.ErrDeadlineExceeded
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *PacketConn) passTurn() { <-c.reader.turn }

// receive waits until datagrams have arrived, takes as many as ds has room for, and returns
// how many. The caller has the turn.
func (c *PacketConn) receive(ds []ud.Datagram) (int, error) {
	for {
		if err := c.callError(c.readDeadline); err != nil {
			return 0, err
		}
		n := c.endpoint.Receive(ds)
		if n == 0 {
			n = c.poll(ds)
		}
		if n == 0 {
			c.endpoint.Arm()
			n = c.endpoint.Receive(ds)
		}
		if n > 0 {
			crossing.Acquire()
			return n, nil
		}
		c.wait()
	}
}

// wait waits until something may have arrived, or a call is to fail. The caller has the turn.
func (c *PacketConn) wait() {
	select {
	case <-c.reader.wake:
	case <-c.readDeadline.Done():
	case <-c.closed:
	}
}

// pollsPerYield is after how many polls a call that polls lets other goroutines run.
const pollsPerYield = 64

// poll polls until it receives datagrams, but no more often than is worth it: as often as the
// fabric's Spin says after a call that received some, half as often after each that did not,
// down to a 64th. In every 16th call it polls as often as Spin says, to find out whether
// polling is worth it again. The caller has the turn.
func (c *PacketConn) poll(ds []ud.Datagram) int {
	r := &c.reader
	if c.limits.Spin == 0 {
		return 0
	}
	poll, ok := pollers.Begin()
	if !ok {
		return 0
	}
	defer poll.End()
	most := r.pollBudget
	if r.pollCalls++; r.pollCalls%16 == 1 {
		most = c.limits.Spin
	}
	for i := 1; i <= most; i++ {
		if n := c.endpoint.Receive(ds); n > 0 {
			r.pollBudget = c.limits.Spin
			return n
		}
		if i%pollsPerYield == 0 {
			if c.isClosed() || c.readDeadline.Expired() {
				return 0
			}
			runtime.Gosched()
		}
	}
	r.pollBudget = max(r.pollBudget/2, c.limits.Spin/64, 1)
	return 0
}

// filter reports whether c is to read a datagram, and counts it. The fabric calls it within
// Receive, so its caller has the turn.
func (c *PacketConn) filter(d *ud.Datagram) bool {
	h, ok := ud.DecodeHeader(d.Header)
	if !ok || !d.From.Addr().IsValid() || d.From.Port() != 0 && d.From.Port() != h.SourcePort || c.isTooLong(d) {
		c.counters.foreign.Add(1)
		return false
	}
	d.From = netip.AddrPortFrom(d.From.Addr().Unmap(), h.SourcePort)
	if c.remote.IsValid() && d.From != c.remote {
		c.counters.foreign.Add(1)
		return false
	}
	s := c.reader.source(streamOf(d), h.Sequence)
	if missing := int32(h.Sequence - s.next); missing > 0 && h.Sequence != 0 {
		c.counters.missed.Add(uint64(missing))
	}
	s.next = h.Sequence + 1
	c.counters.received.Add(1)
	c.counters.bytesReceived.Add(uint64(d.Len))
	return true
}

// isTooLong reports whether a datagram is longer than c's limit, which senders learn when
// they resolve c's address. Those that send to a group know no limit but that of their card.
func (c *PacketConn) isTooLong(d *ud.Datagram) bool {
	return d.Len > c.limits.MaxMessage && !d.Via.To.IsMulticast()
}

func streamOf(d *ud.Datagram) stream { return stream{d.From, d.Via} }

// source returns what is remembered of a stream. For a new one, sequence is the number that
// its first datagram has.
func (r *reader) source(of stream, sequence uint32) *source {
	s := r.sources[of]
	if s == nil {
		if len(r.sources) >= maxSources {
			for other := range r.sources { // any
				delete(r.sources, other)
				break
			}
		}
		s = &source{addr: addrOf(of.from), next: sequence}
		r.sources[of] = s
	}
	return s
}
