package rconn

import (
	"bufio"
	"errors"
	"net"
	"syscall"

	"github.com/ringnet/ringnet/internal/crossing"
)

// lent is how many bytes at most a descriptor shows that stands for a connection.
const lent = 64 << 10

// SyscallConn implements syscall.Conn, for programs that ask an idle connection by a system
// call whether it is still alive, as drivers of databases do. There is no descriptor behind a
// connection; so Read of the syscall.RawConn makes one for each call of its function, a socket
// that shows what c would: the bytes that have arrived, or EOF or ECONNRESET where c has
// ended, or EAGAIN. Bytes that the function reads from it are read from c, and it must not use
// the descriptor any longer than the call. Read costs some microseconds. Where the function
// returns false, Read waits for more, until the read deadline.
//
// Nothing can be written to that socket (EPIPE), and the RawConn's Write and Control, which
// sets options, return errors.ErrUnsupported without calling the function.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return rawConn{c}, nil }

var _ syscall.Conn = (*Conn)(nil)

// rawConn is the syscall.RawConn of a connection.
type rawConn struct{ c *Conn }

func (r rawConn) Read(f func(fd uintptr) (done bool)) error {
	var failed error // of the socket
	err := r.c.stream.Lend(lent, r.c.readDeadline, func(p []byte, end error) (taken int, done bool) {
		if end == net.ErrClosed {
			return 0, false
		}
		crossing.Acquire()
		taken, done, failed = show(p, end, f)
		return taken, done || failed != nil
	})
	if failed != nil {
		err = failed
	}
	if err == bufio.ErrBufferFull {
		return err
	}
	return r.c.localError("raw-read", err)
}

func (r rawConn) Write(func(fd uintptr) (done bool)) error {
	return r.c.localError("raw-write", errors.ErrUnsupported)
}

func (r rawConn) Control(func(fd uintptr)) error {
	return r.c.localError("raw-control", errors.ErrUnsupported)
}
