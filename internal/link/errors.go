package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
)

// ProtocolError is the error of a peer that broke the protocol.
type ProtocolError = machine.ProtocolError

// errNoAnswer reports that no answer has come in the time that an attempt may take.
var errNoAnswer = errors.New("the peer did not answer")

// unreached is the error of an attempt at another queue pair over one of several routes.
func unreached(r route, err error, routes int) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = errNoAnswer
	}
	return fmt.Errorf("%v to %v: %w; pairs of cards tried: %d", r.local, r.remote, handshakeError(err), routes)
}

// handshakeError is the error that a dial or accept returns for a failed handshake.
func handshakeError(err error) error {
	if errors.Is(err, fabric.ErrDisconnected) || errors.Is(err, fabric.ErrDeviceRemoved) {
		return machine.Lost(err)
	}
	reject := machine.Rejected(err)
	if reject == nil {
		return err
	}
	switch said := wire.DecodeReject(reject.Private); {
	case reject.Reason == fabric.RejectNoListener:
		return os.NewSyscallError("connect", syscall.ECONNREFUSED)
	case reject.Reason == fabric.RejectStale:
		return &fabric.RefusedError{Reason: "its connection manager remembers an earlier connection of this queue pair", Busy: true}
	case said.Reason != "":
		return &fabric.RefusedError{Reason: said.Reason, Busy: said.Busy}
	case reject.Reason == fabric.RejectConsumer:
		return &fabric.RefusedError{Reason: "no reason given; it may not be a ringnet listener", Busy: said.Busy}
	}
	return &machine.LostError{Errno: syscall.ECONNREFUSED, Reason: err}
}

// takenError is the refusal of a queue pair whose addresses a stream has, on another link: the device chose the port.
type takenError struct{ *fabric.RefusedError }

func (e *takenError) Unwrap() error { return e.RefusedError }
