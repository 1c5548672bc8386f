package rconn

import (
	"bufio"

	"github.com/ringnet/ringnet/internal/crossing"
)

// Peek returns the next n bytes without a copy: a slice of the receive ring, where the device has
// placed them. They can still be read afterwards. Peek waits for them until the read deadline;
// bytes that have arrived in one piece it returns also after that. If it returns fewer than n
// bytes, the error says why:
//
//   - bufio.ErrBufferFull: the bytes behind these do not follow them in memory, because the ring
//     ends here, is full, or was replaced. There is at least one byte. To get n bytes in one
//     piece, read them into a slice by [io.ReadFull].
//   - io.EOF, or another error of [Conn.Read]: no more bytes will come.
//   - os.ErrDeadlineExceeded: the read deadline has passed.
//   - bufio.ErrNegativeCount: n is negative.
//
// For example:
//
//	if _, err := conn.Peek(1); err == nil { // something has arrived
//		p, _ := conn.Peek(conn.Buffered()) // all of it that lies in one piece
//		n, _ := file.Write(p)
//		conn.Discard(n)
//	}
//
// The slice belongs to c, and must not be written to. It is valid until the next Read, Discard,
// WriteTo, CloseRead or Close, in any goroutine; if a Discard of the slice returns nil, there was
// no CloseRead and no Close before. A later use of the slice does not crash the process, but may
// find other bytes there, which have arrived later, on this connection or another.
//
// The peer can write to the ring at any time, also to bytes that have arrived; an honest peer
// does not. So a length, a signature or a UTF-8 sequence may change between check and use. Copy
// the bytes before you parse them, as Read does. Use the slice directly only where any bytes will
// do: to write it to a file or another connection, or to hash it.
//
// Peek waits for Reads and other calls that read, and not for Writes. On "auto", assert the *Conn
// that AutoConn.NetConn returns: a connection over TCP has no ring.
func (c *Conn) Peek(n int) ([]byte, error) {
	p, err := c.stream.Peek(n, c.readDeadline)
	crossing.Acquire()
	return p, c.peekError("read", err)
}

// Buffered returns how many bytes Peek returns without waiting: those that have arrived and lie
// in one piece. More may have arrived that lie elsewhere.
func (c *Conn) Buffered() int { return c.stream.Buffered() }

// Discard drops the next n bytes, which gives their room in the ring back to the peer. It waits
// for bytes that have not arrived until the read deadline, and returns how many it has dropped.
// If these are fewer than n, the error is one of [Conn.Read], or bufio.ErrNegativeCount.
func (c *Conn) Discard(n int) (int, error) {
	m, err := c.stream.Discard(n, c.readDeadline)
	return m, c.peekError("read", err)
}

// peekError leaves the errors of package bufio bare, as it does io.EOF.
func (c *Conn) peekError(op string, err error) error {
	if err == bufio.ErrBufferFull || err == bufio.ErrNegativeCount {
		return err
	}
	return c.opError(op, err)
}
