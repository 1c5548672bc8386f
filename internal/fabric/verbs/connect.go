//go:build linux && cgo

package verbs

// The handshake. The queue pair is not rdma_cm's, so it walks from INIT to RTS
// here, with our own timers and retry counts, once the connection manager
// knows the peer: at the answer on the active side, at the request on the
// passive side.

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

// lookAgain is how often Accept looks for the peer's first message. It may overtake the peer's
// confirmation, which may even be lost: told of the message, the connection manager does not wait
// for the confirmation. Devices announce the message by IBV_EVENT_COMM_EST, but only for a queue
// pair that is not in RTS yet, and soft-RoCE never does.
const lookAgain = 10 * time.Millisecond

// Connect implements [fabric.Endpoint].
func (e *endpoint) Connect(ctx context.Context, private []byte) ([]byte, error) {
	if err := e.checkPrivate(private, fabric.MaxConnectData); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	request := e.in.advertise(private, fabric.MaxConnectData)
	e.OfferOptions()
	if err := e.ID.Connect(e.Number(), uint8(e.options.Retries), rnrRetries, request); err != nil {
		return nil, err
	}
	ev, err := e.ID.Await(ctx, rdmacore.ConnectResponse)
	if err != nil {
		return nil, err
	}
	e.contacted = true
	answer := e.out.parse(ev.Private, answerSize)
	if err := e.requireMailbox(); err != nil {
		return nil, err
	}
	var mtu uint8
	if len(answer) == answerSize {
		mtu, answer = answer[mtuAt], answer[:mtuAt]
	}
	_, err = e.ready(mtu, false)
	return answer, err
}

// Confirm implements [fabric.Endpoint].
func (e *endpoint) Confirm() error {
	if err := e.open(); err != nil {
		return err
	}
	return e.stateError(e.ID.Establish())
}

// Accept implements [fabric.Endpoint].
func (e *endpoint) Accept(ctx context.Context, private []byte) error {
	if err := e.checkPrivate(private, fabric.MaxAcceptData); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.requireMailbox(); err != nil {
		return err
	}
	port, err := e.QueryPort()
	if err != nil {
		return err
	}
	mtu, err := e.ready(port.MTU, true)
	if err != nil {
		return err
	}
	if err := e.Arm(); err != nil { // before the answer, and so before the peer's first message
		return err
	}
	defer e.Disarm()
	answer := make([]byte, answerSize)
	copy(answer, private)
	answer[mtuAt] = mtu
	if err := e.ID.Accept(e.Number(), e.in.advertise(answer, answerSize)); err != nil {
		return e.stateError(err)
	}
	return fabric.Unconfirmed(e.awaitConfirmation(ctx))
}

// awaitConfirmation waits until the peer has confirmed the answer, or its first message has arrived.
func (e *endpoint) awaitConfirmation(ctx context.Context) error {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		select {
		case ev := <-e.ID.Events():
			if err := ev.Err(); err != nil || ev.Kind == rdmacore.Established {
				return err
			}
		case <-look.C:
			if e.TakeEvent() {
				e.ID.NotifyEstablished()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Reject implements [fabric.Endpoint].
func (e *endpoint) Reject(private []byte) error {
	if len(private) > fabric.MaxRejectData {
		return tooLong(private, fabric.MaxRejectData)
	}
	return e.ID.Reject(private)
}

// Disconnect implements [fabric.Endpoint].
func (e *endpoint) Disconnect() error {
	failed := e.ToError()
	// EINVAL: never connected, or disconnected already.
	if err := e.ID.Disconnect(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return failed
}

// Behind the private data of an answer stands the MTU of the queue pair that answers, as
// ibv_mtu: the smaller one of those of its port and of the dialer's path, which the
// connection manager has told in the request. The dialer takes the same.
const (
	mtuAt      = fabric.MaxAcceptData
	answerSize = mtuAt + 1
)

// ready moves the queue pair from INIT through RTR to RTS, with an MTU of mtu at most, and returns
// which. answers says that the peer has dialed.
func (e *endpoint) ready(mtu uint8, answers bool) (uint8, error) {
	mtu, err := e.ToReadyToSend(rdmacore.Retries{
		Timeout:  ackTimeout(e.options.AckTimeout),
		Count:    uint8(e.options.Retries),
		RNRTimer: minRNRTimer,
		RNRCount: rnrRetries,
	}, mtu, answers)
	return mtu, e.stateError(err)
}

// stateError is the failure of a step of the handshake, or nil. Between the arrival of the
// peer's request or answer and the end of the handshake, EINVAL is the only sign that the
// peer has withdrawn.
func (e *endpoint) stateError(err error) error {
	if e.contacted && errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("the peer has withdrawn from the handshake: %w (%w)", fabric.ErrDisconnected, err)
	}
	return err
}

func (e *endpoint) checkPrivate(private []byte, limit int) error {
	if err := e.open(); err != nil {
		return err
	}
	if len(private) > limit {
		return tooLong(private, limit)
	}
	return nil
}

func tooLong(private []byte, limit int) error {
	return fmt.Errorf("%d bytes of private data, at most %d: %w", len(private), limit, syscall.EMSGSIZE)
}
