// Package auto is what makes the network "auto" out of several: it connects a dialer to the
// process that TCP would have reached, over the best network that both sides have. docs/auto.md
// describes how the two sides make sure that it is the same process.
//
// A [Dialer] dials one address, with a state machine for each dial. A [Listener] accepts what
// comes over TCP and over each better network, in one queue. Package ringnet has the names of
// networks, their fabrics and listeners, the links that are up, and the order in which addresses
// are tried; it is asked for these by functions.
package auto

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// BetterThanTCP are the networks that auto prefers to TCP, the best first.
var BetterThanTCP = []string{"shm", "rdma"}

// Conn is a connection of any of the networks: a *rconn.Conn or a *[TCPConn].
type Conn interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetNoDelay(noDelay bool) error
	SetKeepAlive(keepAlive bool) error
	SetKeepAlivePeriod(d time.Duration) error
	SetKeepAliveConfig(config net.KeepAliveConfig) error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
	WriteBuffers(bufs *net.Buffers) (int64, error)
	SyscallConn() (syscall.RawConn, error)
	AwaitRead() error
	PeerUser() (uid uint32, known bool)
	Stats() rconn.Stats
	Carrier() string
}

// Reset closes a connection that nobody wants, so that its peer reads ECONNRESET.
func Reset(c interface {
	SetLinger(sec int) error
	Close() error
}) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// causeOf returns the cause of an error of package net.
func causeOf(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Times are how long auto waits and remembers.
type Times struct {
	// Answer is how long a dial waits for better networks to answer before it dials TCP
	// without them. Of the time until a deadline it waits a quarter at most.
	Answer time.Duration

	// Proof is how long a listener that has one half of a proof, the link or the TCP
	// connection, waits for the other half. A dialer waits twice as long for the listener to
	// close the TCP connection.
	Proof time.Duration

	// Connect is how long a link whose request has been answered waits for TCP to connect.
	Connect time.Duration

	// Remember is how long a network is not asked again that has failed for an address to
	// which TCP has connected.
	Remember time.Duration
}

// DefaultTimes are those of programs. Answer is the delay that RFC 8305, section 5, recommends
// between attempts. One SYN may be lost within Connect, which TCP repeats after a second
// (RFC 6298).
var DefaultTimes = Times{
	Answer:   250 * time.Millisecond,
	Proof:    250 * time.Millisecond,
	Connect:  1500 * time.Millisecond,
	Remember: time.Minute,
}

// Failure says why a network does not carry a connection.
type Failure struct {
	Network string
	Err     error

	// Unanswered reports that the network had been asked, and had not answered when the dial
	// went on without it.
	Unanswered bool
}

// RequiredError says that no network is left but TCP where that is not enough, and why.
type RequiredError struct{ PassedOver []Failure }

func (e *RequiredError) Error() string { return "no required network is available" }

// Why a network does not carry a connection although nothing has failed there.
var (
	ErrOff       = errors.New("switched off by RINGNET_NETWORKS or Require")
	ErrLost      = link.ErrLost // TCP was connected first
	ErrNoTCP     = errors.New("the dial ended before this network was connected")
	ErrSlowTCP   = errors.New("TCP has not connected in time")
	ErrElsewhere = errors.New("TCP leads to another listener")
	ErrUnsure    = errors.New("the listener has not proved that TCP leads to it")
	ErrUnmet     = errors.New("the dialer's TCP connection did not arrive at this listener")
)
