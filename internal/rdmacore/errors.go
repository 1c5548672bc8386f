//go:build linux && cgo

package rdmacore

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
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

func syscallError(call string, rc C.int) error {
	return os.NewSyscallError(call, syscall.Errno(rc))
}

// error is the failure of a call that concerns a device, or perhaps none. All such calls fail with
// EIO once the kernel has removed the device, and with it everything that was made there
// (ibv_open_device(3)). The library would free its own memory for these objects only
// with RDMAV_ALLOW_DISASSOC_DESTROY set, which forbids taking asynchronous events while
// another connection ends. But some drivers report whatever their firmware refuses as EIO
// (bnxt_re since Linux 6.11), so the device is asked whether it is gone.
func (d *device) error(call string, rc C.int) error {
	if d != nil && syscall.Errno(rc) == syscall.EIO && (d.gone.Load() || isCutOff(d.ctx)) {
		return removedError(call)
	}
	return syscallError(call, rc)
}

// isCutOff reports whether the kernel has removed a device from this process.
func isCutOff(ctx deviceContext) bool {
	var attr C.struct_rn_ibv_device_attr
	return syscall.Errno(C.rn_query_device(ctx, &attr)) == syscall.EIO
}

func removedError(call string) error {
	return fmt.Errorf("%w: %w", fabric.ErrDeviceRemoved, os.NewSyscallError(call, syscall.ENODEV))
}

// IsShortage reports whether a device has refused what it may grant another time: there
// is no memory, none that may be locked (RLIMIT_MEMLOCK; EPERM where that is 0), or the
// device or the control group's share of it is used up (EAGAIN).
func IsShortage(err error) bool {
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

// errKept reports a device that is back after a reset while the library gives this process
// the context of before.
var errKept = errors.New("the device is back, but the rdma-core of this process keeps the old one until a restart")

// deadError is the failure to open a device whose context is dead.
func deadError(ctx deviceContext) error {
	err := removedError("ibv_query_device")
	if isBack(sysInfiniband, "/dev/infiniband", contextName(ctx), int(ctx.cmd_fd)) {
		return fmt.Errorf("%w: %w", err, errKept)
	}
	return err
}

// isBack reports whether the device of this name has another node than the one that is open
// as fd.
func isBack(sysfs, dev, name string, fd int) bool {
	var open, now unix.Stat_t
	if unix.Fstat(fd, &open) != nil {
		return false
	}
	nodes, _ := os.ReadDir(filepath.Join(sysfs, name, "device/infiniband_verbs"))
	return slices.ContainsFunc(nodes, func(node os.DirEntry) bool {
		return unix.Stat(filepath.Join(dev, node.Name()), &now) == nil && (now.Dev != open.Dev || now.Ino != open.Ino)
	})
}

// memoryError is the failure of a call that makes the kernel lock memory.
func (d *device) memoryError(call string, rc C.int, bytes int) error {
	err := d.error(call, rc)
	switch {
	case isErrno(err, syscall.EAGAIN):
		return fmt.Errorf("%w: the device, or rdma.max of the control group, has no more", err)
	case !IsShortage(err):
		return err
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return err
	}
	return fmt.Errorf("%w: %w: %d KiB more, of %d KiB in all (RLIMIT_MEMLOCK)",
		err, fabric.ErrLockedMemory, (bytes+1023)/1024, limit.Cur/1024)
}

// resolveError is the failure that an event of the connection manager reports: an errno of
// the kernel's, or -1 if the library itself failed, with the device.
func resolveError(call string, status int, addr netip.Addr) error {
	if status == -1 {
		return fmt.Errorf("%w that the rdma-core of this process can open", addrError(call, syscall.ENODEV, addr))
	}
	return addrError(call, syscall.Errno(-status), addr)
}

// eventName names the asynchronous events that end a queue pair.
var eventName = map[uint32]string{
	C.RN_IBV_EVENT_CQ_ERR:        "IBV_EVENT_CQ_ERR",
	C.RN_IBV_EVENT_QP_FATAL:      "IBV_EVENT_QP_FATAL",
	C.RN_IBV_EVENT_QP_REQ_ERR:    "IBV_EVENT_QP_REQ_ERR",
	C.RN_IBV_EVENT_QP_ACCESS_ERR: "IBV_EVENT_QP_ACCESS_ERR",
}
