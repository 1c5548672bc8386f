package rconn

import (
	"io"
	"net"
	"os"
	"syscall"
)

// Read reads into p what has arrived, at least one byte, waiting for it until
// the read deadline. It returns io.EOF when the peer has said that its stream
// ends, and, once everything that arrived has been read, the reason why
// otherwise no more will come. p is the caller's again when Read returns.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	n, err := c.read(p)
	raceAcquire()
	if err != nil {
		return n, c.opError("read", err)
	}
	return n, nil
}

func (c *Conn) read(p []byte) (int, error) {
	if len(p) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed {
			return 0, net.ErrClosed
		}
		return 0, nil
	}
	if c.readDeadline.Expired() && !c.isClosed() {
		return 0, os.ErrDeadlineExceeded
	}
	for {
		c.mu.Lock()
		n, err := c.take(p)
		c.mu.Unlock()
		if n > 0 || err != nil {
			return n, err
		}
		if err := c.wait(readCall, c.readDeadline); err != nil {
			return 0, err
		}
	}
}

// copyLocked is how many bytes are copied without letting go of the poll lock:
// so few take no longer than that would.
const copyLocked = 1 << 10

// take reads into p what has arrived. Called with mu held, which it may let go
// of to copy.
func (c *Conn) take(p []byte) (int, error) {
	first, second, err := c.arrived(len(p))
	n := len(first) + len(second)
	if n == 0 {
		return 0, err
	}
	// Nobody else takes bytes out while this Read is the one under way.
	if n > copyLocked {
		c.mu.Unlock()
	}
	copy(p[copy(p, first):], second)
	if n > copyLocked {
		c.mu.Lock()
	}
	c.taken(n)
	return n, nil
}

// arrived returns the next n bytes to be read, or as many as there are, or why
// there will be none. Called with mu held.
func (c *Conn) arrived(n int) (first, second []byte, err error) {
	if c.inbox.Len() == 0 {
		c.progress()
		if c.polls() {
			c.rearmLater()
		}
	}
	if err := c.readError(); err != nil {
		return nil, nil, err
	}
	first, second = c.inbox.Held(n)
	return first, second, nil
}

// taken gives back the room of n bytes that have been read, and tells the peer
// when there is enough to tell. Called with mu held.
func (c *Conn) taken(n int) {
	pos := c.inbox.Tail() + uint64(n)
	c.inbox.Release(pos)
	c.receiver.Consume(pos)
	if c.receiver.Due() {
		c.flush()
	}
}

func readReady(c *Conn) bool { return c.inbox.Len() > 0 || c.readError() != nil }

// readError is why nothing can be read, or nil if there is something, or may
// still be. Called with mu held.
func (c *Conn) readError() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.readClosed:
		return io.EOF
	case c.inbox.Len() > 0:
		return nil
	case c.peerFin:
		return io.EOF
	case c.peerReset:
		return syscall.ECONNRESET
	case c.ended:
		return c.cause
	}
	return nil
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
