package pconn

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/crossing"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

const (
	// maxReceivers is of how many addresses a Conn keeps how to reach them. For one
	// more, it forgets the one that it has not sent to for longest.
	maxReceivers = 256

	// maxPending is how many more it looks for at a time. For one more, it gives up
	// the one that it has looked for longest: nobody's answers are in the way of those
	// whom it has found.
	maxPending = 256

	// maxHeld is how many bytes wait, in all, for receivers that are being looked for.
	// More than that is lost, of what is for the receiver that most waits for.
	maxHeld = 1 << 20

	// resolveWithin is how long that may take. A receiver whose process is stopped,
	// say, does not answer.
	resolveWithin = 5 * time.Second

	// maxPost is how many datagrams of a batch are sent at a time.
	maxPost = 64
)

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

// receiver is somebody to send to.
type receiver struct {
	at       netip.AddrPort
	handle   fabric.AddressHandle // nil while it is being resolved
	sequence uint32
	used     uint64   // the count of writes when it was last sent to
	held     [][]byte // waits for handle
	bytes    int      // of that, headers included

	// While it is being looked for: which search that is, and how to end it.
	search uint64
	giveUp context.CancelFunc
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
		return 0, c.opError("write", syscall.EDESTADDRREQ)
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
	}
	at, err := addrPortOf(to)
	if err != nil {
		return at, err
	}
	return c.target(at)
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

// receiver is the one at an address, whose handle may not be there yet. Called with mu
// held.
func (c *Conn) receiver(at netip.AddrPort) *receiver {
	s := &c.sender
	r := s.receivers[at]
	if r == nil {
		r = &receiver{at: at}
		s.receivers[at] = r
		c.resolve(r)
	}
	return r
}

// giveUpOne gives up the receiver that has been looked for longest. Called with mu held.
func (c *Conn) giveUpOne() {
	s := &c.sender
	var oldest *receiver
	for _, r := range s.receivers {
		if r.giveUp != nil && (oldest == nil || r.search < oldest.search) {
			oldest = r
		}
	}
	c.counters.dropped.Add(uint64(len(oldest.held)))
	s.release(oldest, len(oldest.held))
	oldest.giveUp()
	s.pending--
	delete(s.receivers, oldest.at)
}

// found takes note that a receiver has been found, and forgets one that has not been sent
// to for long if there are too many of those. Called with mu held.
func (c *Conn) found(r *receiver) {
	s := &c.sender
	s.pending--
	r.giveUp, r.used = nil, s.writes
	if len(s.receivers)-s.pending <= maxReceivers {
		return
	}
	var oldest *receiver
	for _, r := range s.receivers {
		if r.handle != nil && (oldest == nil || r.used < oldest.used) {
			oldest = r
		}
	}
	oldest.handle.Close()
	delete(s.receivers, oldest.at)
}

// hold copies a datagram that has to wait, unless there is no room for it. Called with mu
// held.
func (c *Conn) hold(r *receiver, buffers [][]byte, n int) {
	s := &c.sender
	for n+fabric.HeaderSize > maxHeld-s.held {
		c.counters.dropped.Add(1)
		most := s.most()
		if most.bytes <= r.bytes+n+fabric.HeaderSize {
			return
		}
		s.forget(most, len(most.held)-1, len(most.held))
	}
	data := make([]byte, 0, n)
	for _, b := range buffers {
		data = append(data, b...)
	}
	r.held = append(r.held, data)
	s.count(r, n+fabric.HeaderSize)
}

// most is the receiver that most waits for. Called with mu held.
func (s *sender) most() *receiver {
	var most *receiver
	for _, r := range s.receivers {
		if most == nil || r.bytes > most.bytes {
			most = r
		}
	}
	return most
}

// release forgets the first n datagrams that wait for a receiver. Called with mu held.
func (s *sender) release(r *receiver, n int) { s.forget(r, 0, n) }

// forget does so with those from one to another. Called with mu held.
func (s *sender) forget(r *receiver, from, to int) {
	for _, data := range r.held[from:to] {
		s.count(r, -len(data)-fabric.HeaderSize)
	}
	r.held = slices.Delete(r.held, from, to)
}

// count takes note of bytes that wait for a receiver. Called with mu held.
func (s *sender) count(r *receiver, bytes int) {
	r.bytes += bytes
	s.held += bytes
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

// resolve finds out how to reach a receiver, in the background. Called with mu held.
func (c *Conn) resolve(r *receiver) {
	s := &c.sender
	if s.pending == maxPending {
		c.giveUpOne()
	}
	s.pending++
	s.searches++
	ctx, cancel := context.WithCancel(s.ctx)
	r.search, r.giveUp = s.searches, cancel
	s.resolving.Go(func() {
		defer cancel()
		for !c.tryToResolve(ctx, r) {
		}
	})
}

// tryToResolve tries once. That nobody is there is said of the time when it began: for
// those datagrams that have come since, it is to be tried again.
func (c *Conn) tryToResolve(ctx context.Context, r *receiver) (done bool) {
	s := &c.sender
	s.mu.Lock()
	waited := len(r.held)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, resolveWithin)
	defer cancel()
	h, err := c.endpoint.Resolve(ctx, r.at)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receivers[r.at] != r { // it has been given up
		if err == nil {
			h.Close()
		}
		return true
	}
	if err == nil {
		r.handle = h
		sent := c.sendHeld(r)
		s.release(r, sent)
		if len(r.held) == 0 {
			c.found(r)
			return true
		}
		r.handle.Close()
		r.handle, r.sequence = nil, 0
		if waited -= sent; waited <= 0 {
			return false // what has come since is for the successor
		}
		err = syscall.ECONNREFUSED
	}
	var reject *fabric.RejectError
	switch {
	case errors.As(err, &reject):
		err = syscall.ECONNREFUSED
	case errors.Is(err, context.DeadlineExceeded):
		err = syscall.EHOSTUNREACH
	}
	if waited > len(r.held) || !errors.Is(err, syscall.ECONNREFUSED) {
		waited = len(r.held)
	}
	c.counters.unreachable.Add(uint64(waited))
	s.release(r, waited)
	c.tell(err)
	if len(r.held) > 0 {
		return false
	}
	s.pending--
	delete(s.receivers, r.at)
	return true
}

// sendHeld sends what waits for a receiver that has been found, and returns how much:
// not all of it if the receiver has gone again. Called with mu held.
func (c *Conn) sendHeld(r *receiver) int {
	for i, data := range r.held {
		d := []fabric.Datagram{{To: r.handle, Buffers: [][]byte{data}}}
		c.number(&d[0], r)
		c.endpoint.Send(d)
		if !c.sent(&d[0]) {
			return i
		}
	}
	return len(r.held)
}

// tell has the next call of a Conn that was dialed return why its datagrams do not
// arrive.
func (c *Conn) tell(err error) {
	if c.remote.IsValid() {
		c.refused.Store(&err)
		c.reader.notify()
	}
}
