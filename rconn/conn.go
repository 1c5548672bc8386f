// Package rconn makes a byte stream of a connected queue pair: Read, Write,
// half-closes, Close and deadlines as package net defines them.
//
// It knows no device: queue pairs come from a fabric. It decides when bytes go,
// using package credit for how many may, package ring for where they lie, and
// package wire for how to say so. The way of a byte: [Conn.Write] (write.go)
// hands it to the send queue (send.go), the peer's progress engine
// (progress.go) takes it from a completion, and [Conn.Read] (read.go) copies it
// out. dispatch.go is the one goroutine of a connection, which makes progress
// when nobody else does and takes everything down in the end (close.go).
//
// The package is used through package ringnet and promises no API before v1.
package rconn

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/ring"
)

// Conn is one end of a reliable byte stream over one queue pair. Its methods
// may be called at once from any goroutines; concurrent Writes do not mix their
// bytes, and concurrent Reads each get a piece of their own.
//
// Errors other than io.EOF are *net.OpError, as package net's are. With
// errors.Is: os.ErrDeadlineExceeded when a deadline has passed; net.ErrClosed
// after Close; syscall.EPIPE when writing after CloseWrite or to a peer that has
// closed; syscall.ECONNRESET when the peer is gone without having said so, or
// has closed with bytes of ours unread; syscall.ENETDOWN when this side's device
// is gone; syscall.ETIMEDOUT when the peer's
// device does not answer; syscall.EPROTO when the peer breaks the protocol.
type Conn struct {
	ep            fabric.Endpoint
	cfg           Config
	limits        fabric.Limits
	local, remote net.Addr

	reading       sync.Mutex // held by the one Read under way, also while it waits
	writing       sync.Mutex // held by the one Write under way, also while it waits
	readDeadline  *deadline.Deadline
	writeDeadline *deadline.Deadline

	// spinners is how many calls are polling the completion queue over and
	// over. It is written under mu or by the caller that polls.
	spinners atomic.Int32

	mu sync.Mutex // the poll lock: guards the endpoint's queues and all below

	// The turn at the device: see turn.
	posting   bool      // somebody has it, without mu
	posted    sync.Cond // on mu; posting has ended
	again     bool      // whoever has it is to go another round
	armWanted bool      // and to arm

	dispatching bool // the dispatcher is awake, or will be

	receiver credit.Receiver
	inbox    *ring.Ring // the ring that the peer writes to
	receives int        // receives posted and not completed
	spent    int        // receives that data has completed, to be posted again

	calls  [3]call // that may wait, at most one of each
	parked int     // how many of them do, and are not ready

	sendQueue

	completions [maxBatch]fabric.Completion // scratch of progress

	// Who watches the completion queue: it is armed, or a spinner polls it, or
	// rearm is about to look whether one still does.
	armed     bool
	rearming  bool
	rearm     *time.Timer
	rearmTime time.Duration // that rearm was last set to
	rounds    uint64        // of progress; what rearm compares
	heard     uint64        // completions; what keepAlive compares
	budget    int           // polls that a wait may make before it parks
	waits     uint64        // that polled

	state
	stats Stats

	keepAlive *time.Timer // nil if there are to be no probes
	drain     *time.Timer // of drainTick, once the queue pair is in ERR
	teardown  *time.Timer // of force, once Close has done its part
	keepHeard uint64      // heard when keepAlive last fired
	rearmSeen uint64      // rounds when rearm last fired
}

var _ net.Conn = (*Conn)(nil)

// state is where the connection is in its life. Each direction ends by itself.
type state struct {
	// What the application has said.
	closed      bool          // Close
	readClosed  bool          // CloseRead
	drop        bool          // nobody reads any more: what arrives is dropped
	writeClosed bool          // CloseWrite or Close: no more bytes are accepted
	unread      bool          // Close found bytes nobody will read: RESET
	linger      time.Duration // what Close waits

	// What the peer has said.
	broken     bool // something that breaks the protocol
	peerFin    bool
	peerFinAck bool
	peerReset  bool

	// How it ended. failed says that the queue pair is in ERR and nobody has
	// said why. cause is set first, which stops sending; ended follows when
	// all posted receives have come back, and with them all that had arrived,
	// or the device can no longer be expected to give them back.
	failed    bool
	cause     error
	wasCut    bool // the queue pair has been moved to ERR
	abandoned bool // what one more poll does not find will never come back
	ended     bool
	peerGone  bool // Wait has said so: there is no answer to wait for
	forced    bool // teardown has waited long enough for the peer
	down      bool // the endpoint is closed
}

// Stats counts what a connection has done. Bytes and messages are of data;
// control messages are counted apart.
type Stats struct {
	BytesWritten     uint64 // accepted by Write
	BytesReceived    uint64 // arrived, read or not
	MessagesSent     uint64 // data messages: work requests with data
	MessagesReceived uint64
	CreditsSent      uint64 // CREDIT messages
	CreditsReceived  uint64
	WorkRequests     uint64 // posted, of all kinds
	Signaled         uint64 // of those, the signaled ones
	Events           uint64 // times that the dispatcher was woken
	Probes           uint64 // keepalive probes sent
}

// Stats returns a snapshot of the connection's counters. It works after Close.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.BytesWritten = c.sender.Accepted()
	s.BytesReceived = c.receiver.Received()
	return s
}

// LocalAddr is the address of this end: an [Addr].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the address of the other end: an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the deadlines of Read and Write. See [Conn.SetReadDeadline]
// and [Conn.SetWriteDeadline].
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadline(t, c.readDeadline, c.writeDeadline)
}

// SetReadDeadline makes Reads fail with os.ErrDeadlineExceeded from t on, those
// under way included. Nothing is lost: once the deadline is moved, Read goes on
// where it was. The zero time means never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, c.readDeadline) }

// SetWriteDeadline makes Writes fail with os.ErrDeadlineExceeded from t on,
// those under way included. Such a Write says how many bytes it accepted; those
// arrive, and once the deadline is moved, Writes go on behind them. The zero
// time means never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, c.writeDeadline) }

func (c *Conn) setDeadline(t time.Time, ds ...*deadline.Deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		d.Set(t)
	}
	return nil
}
