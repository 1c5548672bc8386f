//go:build linux && !386

package shm

import "golang.org/x/sys/unix"

// The system calls that Go makes.
const (
	callFtruncate = unix.SYS_FTRUNCATE
	callFcntl     = unix.SYS_FCNTL
	callLseek     = unix.SYS_LSEEK
	callMmap      = unix.SYS_MMAP
	callFstatfs   = unix.SYS_FSTATFS
)

var (
	callSendto   = systemCall{number: unix.SYS_SENDTO, argument: anyArgument}
	callRecvfrom = systemCall{number: unix.SYS_RECVFROM, argument: anyArgument}
	callNetlink  = systemCall{number: unix.SYS_SOCKET, argument: 0, value: unix.AF_NETLINK}
)
