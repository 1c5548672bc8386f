//go:build linux

// What a sandbox may refuse: any system call, with any error (seccomp(2)).

package shm

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Whatever is refused that sharing memory needs, at either end, is known before
// anything is dialed or listened at: the dialer of a listener that finds out later
// would have a connection that ends at once.
func TestFabricIsUnsupportedWhereASandboxRefuses(t *testing.T) {
	for name, call := range map[string]systemCall{
		"memfd_create":                {number: unix.SYS_MEMFD_CREATE, argument: anyArgument, errno: unix.EPERM},
		"ftruncate":                   {number: callFtruncate, argument: anyArgument, errno: unix.EPERM},
		"fcntl F_ADD_SEALS":           {number: callFcntl, argument: 1, value: unix.F_ADD_SEALS, errno: unix.EPERM},
		"fcntl F_GET_SEALS":           {number: callFcntl, argument: 1, value: unix.F_GET_SEALS, errno: unix.EPERM},
		"lseek SEEK_HOLE":             {number: callLseek, argument: anyArgument, errno: unix.EPERM},
		"mmap":                        {number: callMmap, argument: 3, value: unix.MAP_SHARED, errno: unix.EACCES},
		"mremap":                      {number: unix.SYS_MREMAP, argument: anyArgument, errno: unix.EPERM},
		"madvise MADV_POPULATE_WRITE": {number: unix.SYS_MADVISE, argument: 2, value: unix.MADV_POPULATE_WRITE, errno: unix.EPERM},
		"fstatfs":                     {number: callFstatfs, argument: anyArgument, errno: unix.EPERM},
		"recvmmsg":                    {number: unix.SYS_RECVMMSG, argument: anyArgument, errno: unix.EPERM},
		"sendto":                      {number: unix.SYS_SENDTO, argument: anyArgument, errno: unix.EPERM},
	} {
		for _, errno := range []syscall.Errno{call.errno, unix.ENOSYS} {
			t.Run(name+" "+unix.ErrnoName(errno), func(t *testing.T) {
				inProcess(t, nil, func() {
					call.errno = errno
					require.NoError(t, call.refuse())
					_, err := New(Config{})
					require.ErrorIs(t, err, errno)
					require.ErrorIs(t, err, errors.ErrUnsupported)
					require.ErrorContains(t, err, "the kernel, or a sandbox, refuses ")
					require.ErrorContains(t, err, name)
					require.NotContains(t, err.Error(), "peer")
				})
			})
		}
	}
}

// systemCall is one that a sandbox refuses, if one of its arguments has a value.
type systemCall struct {
	number   uint32
	argument int // its index, or anyArgument
	value    uint32
	errno    syscall.Errno
}

const anyArgument = -1

// with is the call with the error that a sandbox returns. It skips the test if no sandbox can
// refuse the call.
func (c systemCall) with(t *testing.T, errno syscall.Errno) systemCall {
	t.Helper()
	if c.number == 0 {
		t.Skip("no filter sees the family of a socket here")
	}
	c.errno = errno
	return c
}

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

// A peer that sleeps and cannot be woken would not know of what has been sent.
func TestPeerThatCannotBeWokenIsDisconnected(t *testing.T) {
	inProcess(t, nil, func() {
		a, b := connected(t, options)
		require.NoError(t, b.Arm())
		require.NoError(t, systemCall{number: unix.SYS_SENDTO, argument: anyArgument, errno: unix.ENOBUFS}.refuse())
		post(t, a, send(1, "x"))
		soon(t, "the sender's Wait", func() {
			err := a.Wait()
			assert.ErrorIs(t, err, fabric.ErrQueuePair)
			assert.ErrorIs(t, err, unix.ENOBUFS)
		})
		require.NoError(t, a.Disconnect())
		soon(t, "the peer's Wait", func() {
			err := b.Wait()
			for err == nil { // for the message
				err = b.Wait()
			}
			assert.ErrorIs(t, err, fabric.ErrDisconnected)
		})
		require.Equal(t, []byte("x"), poll(t, b)[0].Data)
	})
}

// What this process may not read says nothing of the peer.
func TestPeerWhoseDoorbellsCannotBeReadIsNotTakenForGone(t *testing.T) {
	inProcess(t, nil, func() {
		a, _ := connected(t, options)
		require.NoError(t, systemCall{number: unix.SYS_RECVMMSG, argument: anyArgument, errno: unix.EPERM}.refuse())
		soon(t, "Wait", func() {
			err := a.Wait()
			assert.ErrorIs(t, err, fabric.ErrQueuePair)
			assert.ErrorIs(t, err, unix.EPERM)
			assert.ErrorContains(t, err, "recvmmsg")
		})
	})
}
