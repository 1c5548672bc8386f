package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Of linux/sock_diag.h and linux/smc_diag.h.
const (
	netlinkSockDiag    = 4
	sockDiagByFamily   = 20
	smcDiagRequest     = 52 // struct smc_diag_req
	smcDiagMode        = 2  // offsets in struct smc_diag_msg
	smcDiagInode       = 56
	smcDiagMessage     = 64
	smcDiagModeRDMA    = 0
	smcDiagModeTCP     = 1
	netlinkMessageSize = 16 // struct nlmsghdr
)

// smcCarries returns an error unless the kernel carries the SMC socket with the given inode
// by RDMA.
func smcCarries(inode uint64) error {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, netlinkSockDiag)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer syscall.Close(fd)
	req := make([]byte, netlinkMessageSize+smcDiagRequest)
	binary.NativeEndian.PutUint32(req, uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(req[6:], syscall.NLM_F_REQUEST|syscall.NLM_F_DUMP)
	req[netlinkMessageSize] = afSMC
	if err := syscall.Sendto(fd, req, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	b := make([]byte, 64<<10)
	for {
		n, _, err := syscall.Recvfrom(fd, b, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(b[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == syscall.NLMSG_DONE:
				return errors.New("the kernel does not list the socket (module smc_diag)")
			case m.Header.Type == syscall.NLMSG_ERROR:
				return errors.New("the kernel cannot list SMC sockets (module smc_diag)")
			case len(m.Data) < smcDiagMessage || binary.NativeEndian.Uint64(m.Data[smcDiagInode:]) != inode:
			case m.Data[smcDiagMode] == smcDiagModeRDMA:
				return nil
			case m.Data[smcDiagMode] == smcDiagModeTCP:
				return errors.New("connected, but fell back to TCP")
			default:
				return fmt.Errorf("connected by another kind of SMC (%d)", m.Data[smcDiagMode])
			}
		}
	}
}
