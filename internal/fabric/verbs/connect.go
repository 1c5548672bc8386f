//go:build linux && cgo

package verbs

// The handshake. The queue pair is not rdma_cm's, so it walks from INIT to RTS
// here, with our own timers and retry counts, once the connection manager
// knows the peer: at the answer on the active side, at the request on the
// passive side.

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

// lookAgain is how often Accept looks for the peer's first message. It may overtake the peer's
// confirmation, which may even be lost: told of the message, the connection manager does not wait
// for the confirmation. Devices announce the message by IBV_EVENT_COMM_EST, but only for a queue
// pair that is not in RTS yet, and soft-RoCE never does.
const lookAgain = 10 * time.Millisecond

// receive implements [receiver].
func (e *endpoint) receive(ev cmEvent) {
	select {
	case e.handshake <- ev:
	default:
	}
	switch ev.kind {
	case C.RN_RDMA_CM_EVENT_DISCONNECTED,
		// After Confirm: the peer gave up before the confirmation arrived.
		C.RN_RDMA_CM_EVENT_REJECTED:
		e.notify(fabric.ErrDisconnected, fabric.ErrDisconnected)
	case C.RN_RDMA_CM_EVENT_DEVICE_REMOVAL:
		e.notify(fabric.ErrDeviceRemoved, fabric.ErrDeviceRemoved)
	}
}

// await returns the next event of the kinds wanted, or an error if another event ended
// the handshake or ctx ended first.
func (e *endpoint) await(ctx context.Context, wanted ...uint32) (cmEvent, error) {
	for {
		select {
		case ev := <-e.handshake:
			if slices.Contains(wanted, ev.kind) {
				return ev, nil
			}
			if err := connectError(ev); err != nil {
				return ev, err
			}
		case <-e.look:
			if e.takeEvent(0) {
				C.rn_notify_established(e.id)
			}
		case <-ctx.Done():
			return cmEvent{}, ctx.Err()
		}
	}
}

func (e *endpoint) Connect(ctx context.Context, private []byte) ([]byte, error) {
	if err := e.checkPrivate(private, fabric.MaxConnectData); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	data, n := privateData(e.in.advertise(private, fabric.MaxConnectData))
	if rc := C.rn_connect(e.id, e.qp.qp_num, C.uint8_t(e.options.Retries), rnrRetries, data, n); rc != 0 {
		return nil, syscallError("rdma_connect", rc)
	}
	ev, err := e.await(ctx, C.RN_RDMA_CM_EVENT_CONNECT_RESPONSE)
	if err != nil {
		return nil, err
	}
	e.contacted = true
	answer := e.out.parse(ev.private, answerSize)
	if err := e.requireMailbox(); err != nil {
		return nil, err
	}
	var mtu C.uint8_t
	if len(answer) == answerSize {
		mtu, answer = C.uint8_t(answer[mtuAt]), answer[:mtuAt]
	}
	return answer, e.ready(&mtu)
}

func (e *endpoint) Confirm() error {
	if e.queue == nil {
		return net.ErrClosed
	}
	if rc := C.rn_establish(e.id); rc != 0 {
		return e.stateError("rdma_establish", rc)
	}
	return nil
}

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
	port, err := e.queryPort()
	if err != nil {
		return err
	}
	mtu := C.uint8_t(port.active_mtu)
	if err := e.ready(&mtu); err != nil {
		return err
	}
	if err := e.Arm(); err != nil { // before the answer, and so before the peer's first message
		return err
	}
	defer e.armed.Store(false)
	answer := make([]byte, answerSize)
	copy(answer, private)
	answer[mtuAt] = byte(mtu)
	data, n := privateData(e.in.advertise(answer, answerSize))
	if rc := C.rn_accept(e.id, e.qp.qp_num, data, n); rc != 0 {
		return e.stateError("rdma_accept", rc)
	}
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	e.look = look.C
	_, err = e.await(ctx, C.RN_RDMA_CM_EVENT_ESTABLISHED)
	return fabric.Unconfirmed(err)
}

func (e *endpoint) Reject(private []byte) error {
	if len(private) > fabric.MaxRejectData {
		return tooLong(private, fabric.MaxRejectData)
	}
	if e.id == nil {
		return net.ErrClosed
	}
	data, n := privateData(private)
	if rc := C.rn_reject(e.id, data, n); rc != 0 {
		return syscallError("rdma_reject", rc)
	}
	return nil
}

func (e *endpoint) Disconnect() error {
	if e.qp == nil {
		return net.ErrClosed
	}
	rc := C.rn_qp_error(e.qp)
	// EINVAL: never connected, or disconnected already.
	if drc := C.rn_disconnect(e.id); drc != 0 && syscall.Errno(drc) != syscall.EINVAL {
		return syscallError("rdma_disconnect", drc)
	}
	if rc != 0 {
		return e.device.deviceError("ibv_modify_qp to ERR", rc)
	}
	return nil
}

// Behind the private data of an answer stands the MTU of the queue pair that answers, as
// ibv_mtu: the smaller one of those of its port and of the dialer's path, which the
// connection manager has told in the request. The dialer takes the same.
const (
	mtuAt      = fabric.MaxAcceptData
	answerSize = mtuAt + 1
)

// ready moves the queue pair from INIT through RTR to RTS. It sets the configured
// traffic class: rdma_cm's, on the side that accepts, is the dialer's. mtu is as
// rn_qp_ready's.
func (e *endpoint) ready(mtu *C.uint8_t) error {
	class := C.int(-1)
	if c, ok := e.config.class(); ok {
		class = C.int(c)
	}
	rc := C.rn_qp_ready(e.id, e.qp, minRNRTimer, C.uint8_t(ackTimeout(e.options.AckTimeout)), C.uint8_t(e.options.Retries), rnrRetries, class, mtu)
	if rc != 0 {
		return e.stateError("ibv_modify_qp to RTS", rc)
	}
	return nil
}

// stateError is the failure of a step of the handshake. Between the arrival of the
// peer's request or answer and the end of the handshake, EINVAL is the only sign that the
// peer has withdrawn.
func (e *endpoint) stateError(call string, rc C.int) error {
	err := e.device.deviceError(call, rc)
	if e.contacted && isErrno(err, syscall.EINVAL) {
		return fmt.Errorf("the peer has withdrawn from the handshake: %w (%w)", fabric.ErrDisconnected, err)
	}
	return err
}

func (e *endpoint) checkPrivate(private []byte, limit int) error {
	if e.queue == nil {
		return net.ErrClosed
	}
	if len(private) > limit {
		return tooLong(private, limit)
	}
	return nil
}

func tooLong(private []byte, limit int) error {
	return fmt.Errorf("%d bytes of private data, at most %d: %w", len(private), limit, syscall.EMSGSIZE)
}

func privateData(b []byte) (unsafe.Pointer, C.uint8_t) {
	return unsafe.Pointer(unsafe.SliceData(b)), C.uint8_t(len(b))
}
