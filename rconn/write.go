package rconn

import (
	"net"
	"os"
	"syscall"
)

// Write writes p, waiting until the peer has room for all of it or the write
// deadline has passed. If it fails it says how many bytes it accepted before;
// those are delivered unless the connection is lost. p is the caller's again
// when Write returns. A Write that returns nil says that the bytes have their
// place at the peer, not that they are there: Close waits for that.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	raceRelease()
	n, err := c.write(p)
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

func (c *Conn) write(p []byte) (n int, err error) {
	for {
		if c.writeDeadline.Expired() && !c.isClosed() {
			return n, os.ErrDeadlineExceeded
		}
		c.mu.Lock()
		m, err := c.accept(p[n:])
		c.mu.Unlock()
		n += m
		if err != nil || n == len(p) {
			return n, err
		}
		if m > 0 {
			continue
		}
		if err := c.wait(writeCall, c.writeDeadline); err != nil {
			return n, err
		}
	}
}

// accept takes from p what the peer has room for, a message's worth at most,
// and sends it or sees to it that it will be sent. Called with mu held, which it
// may let go of to copy or to post.
func (c *Conn) accept(p []byte) (int, error) {
	n, err := c.room(len(p))
	if n == 0 {
		return 0, err
	}
	handOver := c.handsOver()
	if n <= c.limits.Inline && !handOver && c.sendNow(p[:n]) {
		return n, nil
	}
	if n = min(n, c.staging.Free()); n == 0 {
		return 0, nil
	}
	// Room only grows while this Write is the one under way, so the copy needs
	// no lock, and the reader need not wait for it.
	first, second := c.staging.Reserve(n)
	c.mu.Unlock()
	copy(second, p[copy(first, p[:n]):n])
	c.mu.Lock()
	return c.staged(n, handOver)
}

// room is how many of n bytes the peer has room for, a message's worth at most,
// or why there will be none. Called with mu held.
func (c *Conn) room(n int) (int, error) {
	if !c.slots.Completed(c.ahead) {
		c.progress() // perhaps they have, and nothing need wait for them
	}
	if err := c.writeError(); err != nil {
		return 0, err
	}
	if c.cause != nil {
		return 0, nil
	}
	return min(n, c.sender.Space(), c.chunk), nil
}

// staged accepts the n bytes that have been copied behind what the staging ring
// holds, and returns n, unless writing has become an error meanwhile. Called
// with mu held.
func (c *Conn) staged(n int, handOver bool) (int, error) {
	if err := c.writeError(); err != nil {
		return 0, err
	}
	c.sender.Accept(n)
	c.staging.Commit(n)
	if handOver && !c.posting {
		c.callDispatcher()
		return n, nil
	}
	c.flush()
	if c.sender.Pending() > 0 && !c.posting {
		c.arm() // what waits for a completion must see it
	}
	return n, nil
}

func writeReady(c *Conn) bool {
	return c.writeError() != nil || c.cause == nil && c.sender.Space() > 0 && c.staging.Free() > 0
}

// writeError is why nothing can be written, or nil. Called with mu held.
func (c *Conn) writeError() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeClosed:
		return syscall.EPIPE
	case c.peerReset:
		return syscall.ECONNRESET
	case c.ended && c.peerLeft():
		return syscall.EPIPE
	case c.ended:
		return c.cause
	}
	return nil
}
