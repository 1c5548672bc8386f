package rconn

import (
	"math"
	"net"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
)

// teardownTime bounds how long a closed connection keeps its resources while
// its peer's progress engine, or the peer's kernel, owes an answer.
const teardownTime = 5 * time.Second

// Close ends the connection. Calls under way return net.ErrClosed. It sends
// what Write has accepted, says that the stream ends, and waits until the
// peer's device has taken all of that, at most the linger time: so a program
// may write, close and exit. What the peer's application does makes no
// difference. If bytes have arrived that were not read, the peer is told that
// too: it gets the bytes and then ECONNRESET instead of io.EOF.
//
// Close returns an error if the bytes could not be delivered: ETIMEDOUT when
// the linger time was too short. It returns nil if the peer has closed already,
// or if the connection had been lost before.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	linger, wasLost := c.linger, c.cause != nil
	if linger == 0 {
		c.lose(net.ErrClosed)
	}
	c.wake()
	c.mu.Unlock()
	c.dropInbox(func() {
		c.unread = c.inbox.Len() > 0
		c.writeClosed = true
	})

	timedOut := false
	if linger > 0 {
		limit := deadline.New()
		limit.Set(time.Now().Add(linger))
		timedOut = c.wait(closeCall, limit) != nil
		limit.Set(never)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if timedOut {
		c.lose(syscall.ETIMEDOUT)
	}
	if !c.down {
		c.teardown = time.AfterFunc(teardownTime, c.force)
	}
	c.ep.Wake()
	if wasLost || linger == 0 || c.delivered() || c.peerReset || c.peerLeft() {
		return nil
	}
	return c.opError("close", c.cause)
}

// dropInbox drops what has arrived and what will. A Read under way, which has
// been told to stop, leaves first, for it may be copying.
func (c *Conn) dropInbox(before func()) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.posting {
		c.posted.Wait()
	}
	c.turn(true)
	before()
	c.drop = true
	c.discard()
	c.progress()
}

// delivered says whether the peer's device has all that was accepted, and the
// word that it was all. Called with mu held.
func (c *Conn) delivered() bool {
	return c.sent[resetControl] || !c.unread && c.sent[finControl]
}

// peerLeft says whether the peer ended its stream and then disconnected, as it
// does when it has closed. Called with mu held.
func (c *Conn) peerLeft() bool { return c.peerFin && c.cause == syscall.ECONNRESET }

func closeReady(c *Conn) bool { return c.delivered() || c.ended }

// CloseWrite says that no more bytes will be written: the peer reads what was
// accepted and then io.EOF. It does not wait, and reading goes on.
func (c *Conn) CloseWrite() error {
	return c.closeHalf(&c.writeClosed)
}

// CloseRead makes Read return io.EOF, now and always. What has arrived unread
// and what still arrives is dropped, so that the peer can go on writing.
func (c *Conn) CloseRead() error {
	err := c.closeHalf(&c.readClosed)
	if err == nil {
		c.dropInbox(func() {})
	}
	return err
}

func (c *Conn) closeHalf(half *bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.opError("close", net.ErrClosed)
	case c.ended:
		return c.opError("close", syscall.ENOTCONN)
	}
	*half = true
	c.progress()
	c.arm()
	return nil
}

// SetLinger says what Close does with bytes that the peer's device has not
// taken: sec < 0, wait at most Config.Linger, the default; sec > 0, wait at
// most that many seconds; 0, do not wait and discard them, so that the peer gets
// ECONNRESET.
func (c *Conn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.linger = time.Duration(min(sec, math.MaxInt32)) * time.Second
	if sec < 0 {
		c.linger = c.cfg.Linger
	}
	return nil
}

// force ends the wait for a peer that does not answer.
func (c *Conn) force() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return
	}
	c.forced = true
	c.lose(net.ErrClosed)
	c.ep.Wake()
}
