//go:build linux && cgo

package verbs

// Errors of the libraries and of the connection manager's events, with the cause in
// words where the errno alone does not tell it. docs/troubleshoot.md has what to do
// about it.

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

func syscallError(call string, rc C.int) error {
	return os.NewSyscallError(call, syscall.Errno(rc))
}

// deviceError is the failure of a call that concerns a device. All such calls fail with
// EIO once the kernel has removed the device, and with it everything that was made there
// (ibv_open_device(3)). The library would free its own memory for these objects only
// with RDMAV_ALLOW_DISASSOC_DESTROY set, which forbids taking asynchronous events while
// another connection ends.
func deviceError(call string, rc C.int) error {
	if syscall.Errno(rc) == syscall.EIO {
		return fmt.Errorf("%w: %w", fabric.ErrDeviceRemoved, os.NewSyscallError(call, syscall.ENODEV))
	}
	return syscallError(call, rc)
}

func isGone(err error) bool { return errors.Is(err, fabric.ErrDeviceRemoved) }

// isShortage reports whether a device has refused what it may grant another time: there
// is no memory, none that may be locked (RLIMIT_MEMLOCK; EPERM where that is 0), or the
// device or the control group's share of it is used up (EAGAIN).
func isShortage(err error) bool {
	return isErrno(err, syscall.ENOMEM, syscall.EPERM, syscall.EAGAIN)
}

func isErrno(err error, errnos ...syscall.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// addrError is the failure of a call that looks for the device that has an
// address or a route to it.
func addrError(call string, errno syscall.Errno, addr netip.Addr) error {
	err := os.NewSyscallError(call, errno)
	if isErrno(err, syscall.ENODEV) {
		return fmt.Errorf("%w: %w: no RDMA device for %v", errors.ErrUnsupported, err, addr)
	}
	return err
}

// memoryError is the failure of a call that makes the kernel lock memory.
func memoryError(call string, rc C.int, bytes int) error {
	err := deviceError(call, rc)
	switch {
	case isErrno(err, syscall.EAGAIN):
		return fmt.Errorf("%w: the device, or rdma.max of the control group, has no more", err)
	case !isShortage(err):
		return err
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return err
	}
	return fmt.Errorf("%w: %w: %d KiB more, of %d KiB in all (RLIMIT_MEMLOCK)",
		err, fabric.ErrLockedMemory, (bytes+1023)/1024, limit.Cur/1024)
}

// connectError is the event that ended a handshake.
func connectError(ev cmEvent) error {
	switch ev.kind {
	case C.RN_RDMA_CM_EVENT_REJECTED:
		return &fabric.RejectError{Reason: rejectReason(ev.status), Private: ev.private}
	case C.RN_RDMA_CM_EVENT_UNREACHABLE:
		if syscall.Errno(-ev.status) == syscall.ETIMEDOUT {
			return os.NewSyscallError("rdma_connect", syscall.ETIMEDOUT)
		}
		return os.NewSyscallError("rdma_connect", syscall.EHOSTUNREACH)
	case C.RN_RDMA_CM_EVENT_DISCONNECTED:
		return fmt.Errorf("during the handshake: %w", fabric.ErrDisconnected)
	case C.RN_RDMA_CM_EVENT_DEVICE_REMOVAL:
		return fabric.ErrDeviceRemoved
	}
	if ev.status < 0 {
		return os.NewSyscallError("rdma_connect", syscall.Errno(-ev.status))
	}
	return fmt.Errorf("rdma_connect: event %d, status %d: %w", ev.kind, ev.status, syscall.ECONNABORTED)
}

// rejectReason is the reason of a rejection, as InfiniBand numbers them. With iWARP the
// status is TCP's errno: ECONNREFUSED if no listener has the port, another if the
// listener rejects.
func rejectReason(status int) int {
	switch {
	case status >= 0:
		return status
	case syscall.Errno(-status) == syscall.ECONNREFUSED:
		return fabric.RejectNoListener
	}
	return fabric.RejectConsumer
}

// eventName names the asynchronous events that end a queue pair.
var eventName = map[uint32]string{
	C.RN_IBV_EVENT_CQ_ERR:        "IBV_EVENT_CQ_ERR",
	C.RN_IBV_EVENT_QP_FATAL:      "IBV_EVENT_QP_FATAL",
	C.RN_IBV_EVENT_QP_REQ_ERR:    "IBV_EVENT_QP_REQ_ERR",
	C.RN_IBV_EVENT_QP_ACCESS_ERR: "IBV_EVENT_QP_ACCESS_ERR",
}

// statusOf translates ibv_wc_status.
func statusOf(s uint32) fabric.Status {
	switch s {
	case C.RN_IBV_WC_SUCCESS:
		return fabric.OK
	case C.RN_IBV_WC_LOC_LEN_ERR:
		return fabric.LocalLength
	case C.RN_IBV_WC_LOC_QP_OP_ERR:
		return fabric.LocalQPOperation
	case C.RN_IBV_WC_LOC_PROT_ERR:
		return fabric.LocalProtection
	case C.RN_IBV_WC_WR_FLUSH_ERR:
		return fabric.Flushed
	case C.RN_IBV_WC_BAD_RESP_ERR:
		return fabric.BadResponse
	case C.RN_IBV_WC_LOC_ACCESS_ERR:
		return fabric.LocalAccess
	case C.RN_IBV_WC_REM_INV_REQ_ERR:
		return fabric.RemoteInvalidRequest
	case C.RN_IBV_WC_REM_ACCESS_ERR:
		return fabric.RemoteAccess
	case C.RN_IBV_WC_REM_OP_ERR:
		return fabric.RemoteOperation
	case C.RN_IBV_WC_RETRY_EXC_ERR:
		return fabric.RetryExceeded
	case C.RN_IBV_WC_RNR_RETRY_EXC_ERR:
		return fabric.RNRRetryExceeded
	case C.RN_IBV_WC_REM_ABORT_ERR:
		return fabric.RemoteAborted
	case C.RN_IBV_WC_FATAL_ERR:
		return fabric.Fatal
	case C.RN_IBV_WC_RESP_TIMEOUT_ERR:
		return fabric.ResponseTimeout
	}
	return fabric.General
}
