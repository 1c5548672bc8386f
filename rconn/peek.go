package rconn

import (
	"bufio"

	"github.com/ringnet/ringnet/internal/crossing"
)

// Peek returns the next n bytes where the device has placed them, in the receive ring,
// without a copy, and leaves them to be read. It waits for them until the read deadline.
// If it returns fewer than n, the error says why: [bufio.ErrBufferFull], the bytes that
// follow these lie, or will lie, elsewhere, for the ring ends here, or is full, or has
// become another; io.EOF or another error of [Conn.Read], no more will come;
// os.ErrDeadlineExceeded. Bytes that have arrived in one piece it returns whatever the
// deadline. With bufio.ErrBufferFull there is at least one byte: a caller that needs n in
// one piece reads them into a buffer of its own, with [io.ReadFull].
//
//	if _, err := conn.Peek(1); err == nil { // something has arrived
//		p, _ := conn.Peek(conn.Buffered()) // all of it that lies in one piece
//		n, _ := file.Write(p)
//		conn.Discard(n)
//	}
//
// The slice is c's, and is not to be written to. It is what arrived until the next Read,
// Discard, WriteTo, CloseRead or Close, in any goroutine: a Discard of it that returns
// nil says that neither CloseRead nor Close came before. A later use of the slice does
// not crash the process, but may find other bytes there, which arrived later, on this
// connection or another.
//
// The peer can write to the ring at any time, and change bytes that have arrived. So
// what is checked in the slice may be different when it is used: a length, a
// signature, a UTF-8 sequence. Copy out first what is to be parsed, as Read does, and
// leave the slice to what takes bytes as they come: a file, another connection, a
// hash. What of an honest peer arrives does not change.
//
// AwaitRead and Peek may be called at once with writes, and wait for each other and for
// Reads. A connection of "auto" over TCP has no ring: assert the *Conn that NetConn
// of AutoConn returns.
func (c *Conn) Peek(n int) ([]byte, error) {
	p, err := c.stream.Peek(n, c.readDeadline)
	crossing.Acquire()
	if err != nil {
		return p, c.peekError(err)
	}
	return p, nil
}

// Buffered returns how many bytes Peek returns without waiting: those that have
// arrived and lie in one piece. More may have arrived.
func (c *Conn) Buffered() int { return c.stream.Buffered() }

// Discard drops the next n bytes, and gives their room in the ring back to the peer. It
// waits for those that have not arrived, until the read deadline, and returns how many
// it dropped and, if these are fewer than n, why, as [Conn.Read] does.
func (c *Conn) Discard(n int) (int, error) {
	m, err := c.stream.Discard(n, c.readDeadline)
	if err != nil {
		return m, c.peekError(err)
	}
	return m, nil
}

// peekError leaves the errors of package bufio bare, as it does io.EOF.
func (c *Conn) peekError(err error) error {
	if err == bufio.ErrBufferFull || err == bufio.ErrNegativeCount {
		return err
	}
	return c.opError("read", err)
}
