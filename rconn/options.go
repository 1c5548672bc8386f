package rconn

import (
	"net"
	"time"
)

// Options that programs set on a *net.TCPConn, often by an interface that they assert.
// Here they change nothing, and return nil as long as the connection is open: Config sets
// the same for the link, which other connections share.

// SetNoDelay changes nothing. A Write is sent at once, unless the send queue is full or the peer
// has no receive for it: what is written until then travels in one message. After Close the error
// is net.ErrClosed; so it is of the next methods.
func (c *Conn) SetNoDelay(bool) error { return c.setNothing() }

// SetKeepAlive changes nothing: Config.KeepAlive sets when the link probes the peer.
func (c *Conn) SetKeepAlive(bool) error { return c.setNothing() }

// SetKeepAlivePeriod changes nothing: see [Conn.SetKeepAlive].
func (c *Conn) SetKeepAlivePeriod(time.Duration) error { return c.setNothing() }

// SetKeepAliveConfig changes nothing: see [Conn.SetKeepAlive].
func (c *Conn) SetKeepAliveConfig(net.KeepAliveConfig) error { return c.setNothing() }

// SetReadBuffer changes nothing: the ring grows by itself, to Config.RecvBuffer at most.
func (c *Conn) SetReadBuffer(int) error { return c.set(func() {}) }

// SetWriteBuffer changes nothing: Config.SendBuffer sets the size for the whole link.
func (c *Conn) SetWriteBuffer(int) error { return c.set(func() {}) }

// setNothing returns an error after Close, as SetLinger does.
func (c *Conn) setNothing() error { return c.setOption(func() {}) }
