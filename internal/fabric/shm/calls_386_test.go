package shm

import "golang.org/x/sys/unix"

// The system calls that Go makes on 386, where many have had a successor.
const (
	callFtruncate = unix.SYS_FTRUNCATE64
	callFcntl     = unix.SYS_FCNTL64
	callLseek     = unix.SYS__LLSEEK
	callMmap      = unix.SYS_MMAP2
	callFstatfs   = unix.SYS_FSTATFS64
)

// What concerns sockets is one call, whose first argument is a number of linux/net.h, and whose
// others a filter does not see. So it cannot refuse sockets of one family.
var (
	callSendto   = systemCall{number: unix.SYS_SOCKETCALL, argument: 0, value: 11}
	callRecvfrom = systemCall{number: unix.SYS_SOCKETCALL, argument: 0, value: 12}
	callNetlink  = systemCall{}
)
