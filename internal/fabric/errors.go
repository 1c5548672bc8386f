package fabric

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ringnet/ringnet/internal/errtype"
)

// How a connection changed: what [Endpoint.Wait] returns wraps one of these.
var (
	// ErrDisconnected: the peer, or its kernel on its behalf, disconnected.
	ErrDisconnected = errors.New("disconnected")
	// ErrDeviceRemoved: the device is gone or has failed as a whole.
	ErrDeviceRemoved = errors.New("RDMA device removed")
	// ErrQueuePair: the device reported a fatal error of this queue pair or of
	// its completion queue.
	ErrQueuePair = errors.New("fatal queue pair error")
	// ErrPortDown: the port lost its link, perhaps for a moment.
	ErrPortDown = errors.New("port down")
	// ErrAddressChanged: the port's interface has another hardware address, as that of a
	// bond that fails over. What the queue pair sends may still arrive.
	ErrAddressChanged = errors.New("hardware address changed")
	// ErrPathLost: the peer, or the gateway, has another hardware address than the queue pair
	// sends to. It may be reached on another one.
	ErrPathLost = errors.New("the way to the peer has changed")
)

// MayGoOn reports whether a connection may go on after a change of it.
func MayGoOn(err error) bool { return errors.Is(err, ErrPortDown) || errors.Is(err, ErrAddressChanged) }

// Why a fabric cannot be used, or not for this peer, where no errno says it.
var (
	ErrNoLibrary    = errors.New("no rdma-core")
	ErrLockedMemory = errors.New("locked memory is used up")
	ErrOtherHost    = errors.New("not an address of this host")
	ErrOtherUser    = errors.New("another user")
)

// OtherUserError says that the two ends of a connection belong to different users, and that one
// end does not trust the other's. It wraps ErrOtherUser, and a *[RejectError] if Refused is set,
// else EACCES. The effective user IDs are those of this process's user namespace.
type OtherUserError struct {
	Peer, Own uint32
	Refused   bool // it is the peer that does not trust this end's user
}

func (e *OtherUserError) Error() string {
	if e.Refused {
		return fmt.Sprintf("%v: the peer's user ID is %d, and it does not trust ours, %d", ErrOtherUser, e.Peer, e.Own)
	}
	return fmt.Sprintf("%v: the peer's user ID is %d, ours %d: %v", ErrOtherUser, e.Peer, e.Own, syscall.EACCES)
}

func (e *OtherUserError) Unwrap() []error {
	if e.Refused {
		return []error{ErrOtherUser, &RejectError{Reason: RejectStranger}}
	}
	return []error{ErrOtherUser, syscall.EACCES}
}

// RejectError is the answer of a peer that has refused a connection.
type RejectError struct {
	// Reason is the connection manager's: 8 (invalid service ID) when nobody
	// listens, 28 (consumer reject) when a listener refused and Private says
	// why (InfiniBand specification, table "REJ reason codes").
	Reason  int
	Private []byte
}

// Reject reasons that ringnet tells apart.
const (
	RejectNoListener = 8
	RejectStale      = 10 // the queue pair is one of a connection that the peer has not forgotten
	RejectConsumer   = 28

	// RejectStranger is none of the connection manager's: the listener does not trust the
	// dialer's user.
	RejectStranger = 256
)

func (e *RejectError) Error() string {
	return fmt.Sprintf("connection rejected (reason %d)", e.Reason)
}

// UnconfirmedError is the error of an Accept that has sent the answer, and has neither seen it
// confirmed nor rejected. The peer may have confirmed it; if it is ErrDisconnected, the peer has.
type UnconfirmedError struct{ Err error }

func (e *UnconfirmedError) Error() string { return e.Err.Error() }
func (e *UnconfirmedError) Unwrap() error { return e.Err }

// Unconfirmed makes an UnconfirmedError of what has ended the wait for a confirmation, if that is
// neither a rejection nor nil.
func Unconfirmed(err error) error {
	if _, rejected := err.(*RejectError); err == nil || rejected {
		return err
	}
	return &UnconfirmedError{err}
}

// RefusedError is the error of a listener that refused the connection.
// errors.Is(err, syscall.ECONNREFUSED) holds.
type RefusedError struct {
	Reason string // the listener's
	Busy   bool   // a later dial may succeed
}

func (e *RefusedError) Error() string { return "connection refused by the peer: " + e.Reason }

func (e *RefusedError) Unwrap() error { return syscall.ECONNREFUSED }

// As has errors.As find e as the type that programs know.
func (e *RefusedError) As(target any) bool { return errtype.As(e, target) }

func (e *RefusedError) Timeout() bool   { return false }
func (e *RefusedError) Temporary() bool { return e.Busy }

// Status is how a work request ended. The names and the numbers are those of ibv_wc_status.
type Status uint8

const (
	OK                   Status = 0
	LocalLength          Status = 1
	LocalQPOperation     Status = 2
	LocalProtection      Status = 4
	Flushed              Status = 5 // discarded because the queue pair is in state ERR
	BadResponse          Status = 7
	LocalAccess          Status = 8
	RemoteInvalidRequest Status = 9
	RemoteAccess         Status = 10
	RemoteOperation      Status = 11
	RetryExceeded        Status = 12 // the peer's device does not answer
	RNRRetryExceeded     Status = 13 // the peer had no receive posted
	RemoteAborted        Status = 16
	Fatal                Status = 19
	ResponseTimeout      Status = 20
	General              Status = 21
)

var statusText = [...]string{
	OK:                   "success",
	LocalLength:          "local length error",
	LocalQPOperation:     "local QP operation error",
	LocalProtection:      "local protection error",
	Flushed:              "work request flushed",
	BadResponse:          "bad response",
	LocalAccess:          "local access error",
	RemoteInvalidRequest: "remote invalid request",
	RemoteAccess:         "remote access error",
	RemoteOperation:      "remote operation error",
	RetryExceeded:        "transport retries exceeded",
	RNRRetryExceeded:     "receiver-not-ready retries exceeded",
	RemoteAborted:        "remote aborted",
	Fatal:                "fatal error",
	ResponseTimeout:      "response timeout",
	General:              "general error",
}

func (s Status) String() string {
	if int(s) < len(statusText) && statusText[s] != "" {
		return statusText[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}
