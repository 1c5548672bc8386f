package ringnet

// Why a network does not carry a connection, in words and in codes.

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
)

// Reason says why a network that is better than TCP does not carry a connection of "auto", or
// why a listener does not offer it. It is an error that wraps Err.
type Reason struct {
	Network string     // "shm" or "rdma"
	Code    ReasonCode // the kind of Err
	Err     error      // never nil
}

// Error returns the network and the text of Err.
func (r Reason) Error() string { return r.Network + ": " + r.Err.Error() }

// Unwrap returns Err.
func (r Reason) Unwrap() error { return r.Err }

// ReasonCode names the kind of a [Reason], and of an error of dials, handshakes and links in
// [Totals], for programs and metrics. docs/auto.md says what can be done about each.
type ReasonCode string

// The codes. Later versions may have more.
const (
	ReasonSwitchedOff  ReasonCode = "switched-off"  // RINGNET_NETWORKS or Require leaves the network out
	ReasonUnsupported  ReasonCode = "unsupported"   // this build, operating system or kernel does not have the network
	ReasonNoLibrary    ReasonCode = "no-library"    // rdma-core is missing or too old
	ReasonNoDevice     ReasonCode = "no-device"     // there is no RDMA device, or none for this address
	ReasonPermission   ReasonCode = "permission"    // this user may not use the device or the port
	ReasonLockedMemory ReasonCode = "locked-memory" // RLIMIT_MEMLOCK is used up
	ReasonMemory       ReasonCode = "memory"        // the limit of SetMemoryLimit, or the machine's memory, is used up
	ReasonInUse        ReasonCode = "in-use"        // another socket has the port
	ReasonOtherHost    ReasonCode = "other-host"    // shm: the address is not one of this host
	ReasonOtherUser    ReasonCode = "other-user"    // shm: the listener belongs to another user, and one end does not trust the other's
	ReasonNoListener   ReasonCode = "no-listener"   // no listener has the address
	ReasonFull         ReasonCode = "full"          // the listener has no room at the moment
	ReasonRefused      ReasonCode = "refused"       // the listener refuses for another reason, which Err has
	ReasonElsewhere    ReasonCode = "elsewhere"     // TCP leads to another listener, or the listener has not proved otherwise
	ReasonUnreachable  ReasonCode = "unreachable"   // there is no route, or no router answers
	ReasonSilent       ReasonCode = "silent"        // no answer came in time
	ReasonNotTried     ReasonCode = "not-tried"     // TCP was connected, or had failed, before
	ReasonReset        ReasonCode = "reset"         // the peer is gone, or has ended the link
	ReasonProtocol     ReasonCode = "protocol"      // the peer broke the protocol
	ReasonCanceled     ReasonCode = "canceled"      // the caller cancelled the context
	ReasonOther        ReasonCode = "other"         // none of these: see Err
)

// reasonsOf returns the Reasons of networks that do not carry a connection.
func reasonsOf(failed auto.PassedOver) (reasons []Reason) {
	for _, f := range failed {
		r := Reason{f.Network, codeOf(f.Err), f.Err}
		if f.Unanswered {
			r.Code = ReasonSilent
		}
		reasons = append(reasons, r)
	}
	return reasons
}

// codeOf returns the code of an error. The first case that fits decides, so an error that
// wraps several causes has the code of the most special one.
func codeOf(err error) ReasonCode {
	var shortage *budget.ShortageError
	var refused *fabric.RefusedError
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	switch {
	case is(auto.ErrOff):
		return ReasonSwitchedOff
	case is(auto.ErrElsewhere, auto.ErrUnsure, auto.ErrUnmet):
		return ReasonElsewhere
	case is(auto.ErrTCPFirst, auto.ErrNoTCP, auto.ErrSlowTCP):
		return ReasonNotTried
	case is(fabric.ErrOtherHost):
		return ReasonOtherHost
	case is(fabric.ErrOtherUser):
		return ReasonOtherUser
	case is(fabric.ErrNoLibrary):
		return ReasonNoLibrary
	case is(fabric.ErrLockedMemory):
		return ReasonLockedMemory
	case errors.As(err, &shortage) && shortage.Of == budget.LockedMemory:
		return ReasonLockedMemory
	case errors.As(err, &shortage), is(syscall.ENOMEM):
		return ReasonMemory
	case is(fs.ErrPermission):
		return ReasonPermission
	case is(syscall.ENODEV, fabric.ErrDeviceRemoved):
		return ReasonNoDevice
	case is(errors.ErrUnsupported):
		return ReasonUnsupported
	case is(syscall.EADDRINUSE):
		return ReasonInUse
	case errors.As(err, &refused) && refused.Busy:
		return ReasonFull
	case errors.As(err, &refused):
		return ReasonRefused
	case is(syscall.ECONNREFUSED):
		return ReasonNoListener
	case is(syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN):
		return ReasonUnreachable
	case is(os.ErrDeadlineExceeded, context.DeadlineExceeded, syscall.ETIMEDOUT):
		return ReasonSilent
	case is(syscall.EPROTO):
		return ReasonProtocol
	case is(syscall.ECONNRESET):
		return ReasonReset
	case is(context.Canceled):
		return ReasonCanceled
	}
	return ReasonOther
}

// lasts reports whether the next dial of the same address would most likely fail for the same
// reason. If it would, auto does not ask the network for a while.
func (c ReasonCode) lasts() bool {
	switch c {
	case ReasonFull, ReasonMemory, ReasonLockedMemory, ReasonNotTried, ReasonSwitchedOff,
		ReasonProtocol, ReasonReset, ReasonCanceled, ReasonOther:
		return false
	}
	return true
}
