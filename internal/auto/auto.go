// Package auto is what makes the network "auto" out of several: it connects a dialer to the
// process that TCP would have reached, over the best network that both sides have. docs/auto.md
// describes how the two sides make sure that it is the same process.
//
// A [Dialer] dials the addresses of a name, with a state machine for each. A [Listener] accepts what
// comes over TCP and over each better network, in one queue. Package transport has what each of
// these networks does alone.
package auto

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/transport"
)

// BetterThanTCP are the networks that auto prefers to TCP, the best first.
var BetterThanTCP = []string{"shm", "rdma"}

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
	Err     error // with package net's words for the end of a context

	// Unanswered reports that the network had been asked, and had not answered when the dial
	// went on without it.
	Unanswered bool
}

// PassedOver are the reasons why no network better than the one that carries a connection does, the
// best network first.
type PassedOver []Failure

func (p PassedOver) String() string {
	var s []string
	for _, f := range p {
		s = append(s, f.Network+": "+f.Err.Error())
	}
	return strings.Join(s, "; ")
}

// RequiredError says that no network is left but TCP where that is not enough, and why.
type RequiredError struct{ PassedOver }

func (e *RequiredError) Error() string {
	return "no required network is available: " + e.PassedOver.String()
}

// Unwrap returns why each network was passed over.
func (e *RequiredError) Unwrap() (errs []error) {
	for _, f := range e.PassedOver {
		errs = append(errs, f.Err)
	}
	return errs
}

// DialError is the error of TCP, or the end of a context, where no better network was connected
// either, and why.
type DialError struct {
	Err error
	PassedOver
}

func (e *DialError) Error() string {
	if len(e.PassedOver) == 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v (passed over: %v)", e.Err, e.PassedOver)
}

func (e *DialError) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout.
func (e *DialError) Timeout() bool {
	var t net.Error
	return errors.As(e.Err, &t) && t.Timeout()
}

// Temporary reports whether Err is temporary, as package net has it.
func (e *DialError) Temporary() bool {
	var t interface{ Temporary() bool }
	return errors.As(e.Err, &t) && t.Temporary()
}

// errData is why a TCP connection has not ended: the peer has sent something.
var errData = errors.New("data has arrived")

// Why a network does not carry a connection although nothing has failed there.
var (
	ErrOff       = errors.New("switched off by RINGNET_NETWORKS or Require")
	ErrTCPFirst  = link.ErrTCPFirst // TCP was connected first
	ErrNoTCP     = errors.New("the dial ended before this network was connected")
	ErrSlowTCP   = errors.New("TCP has not connected in time")
	ErrElsewhere = errors.New("TCP leads to another listener")
	ErrUnsure    = errors.New("the listener has not proved that TCP leads to it")
	ErrUnmet     = transport.ErrUnmet
)
