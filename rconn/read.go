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
	return n, c.opError("read", err)
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
		if err := c.readError(); err != nil {
			c.mu.Unlock()
			return 0, err
		}
		pos, n := c.inbox.Tail(), min(len(p), c.inbox.Len())
		c.mu.Unlock()
		if n > 0 {
			first := c.inbox.Bytes(pos, n)
			copy(p[copy(p, first):n], c.inbox.Bytes(pos+uint64(len(first)), n-len(first)))
			c.consume(pos + uint64(n))
			return n, nil
		}
		err := c.wait(waiter{(*Conn).readReady, c.readable, c.readDeadline})
		if err != nil {
			return 0, err
		}
	}
}

// consume gives the ring's bytes before pos back, and tells the peer when there
// is enough to tell.
func (c *Conn) consume(pos uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inbox.Release(pos)
	c.receiver.Consume(pos)
	if c.receiver.Due() {
		c.flush()
	}
}

func (c *Conn) readReady() bool { return c.inbox.Len() > 0 || c.readError() != nil }

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
