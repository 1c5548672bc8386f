//go:build linux

// What a sandbox may refuse: any system call, with any error (seccomp(2)).

package shm

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// systemCall is one that a sandbox refuses, if one of its arguments has a value.
type systemCall struct {
	number   uint32
	argument int // its index, or anyArgument
	value    uint32
	errno    syscall.Errno
}

const anyArgument = -1

// refuse has the kernel refuse the call to all threads of this process from now on.
func (c systemCall) refuse() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const number, firstArgument, size = 0, 16, 8 // in struct seccomp_data, of little-endian machines
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unlessEqual := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: k}
	}
	result := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{load(number), unlessEqual(c.number, 1)}
	if c.argument != anyArgument {
		filter = []unix.SockFilter{load(number), unlessEqual(c.number, 3), load(uint32(firstArgument + size*c.argument)), unlessEqual(c.value, 1)}
	}
	filter = append(filter, result(unix.SECCOMP_RET_ERRNO|uint32(c.errno)), result(unix.SECCOMP_RET_ALLOW))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
