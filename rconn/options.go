package rconn

import (
	"net"
	"time"
)

// Options that programs set on a *net.TCPConn, often by an interface that they assert.
// Here they change nothing, and return nil as long as the connection is open: Config sets
// the same for the link, which other connections share. The methods of a *net.TCPConn that
// are about its descriptor (File, SyscallConn) are absent.

// SetNoDelay returns nil: small Writes are gathered in one message only while
// earlier ones are under way, or come faster than the peer takes them.
func (c *Conn) SetNoDelay(bool) error { return c.setNothing() }

// SetKeepAlive returns nil: Config.KeepAlive sets when the link probes its peer.
func (c *Conn) SetKeepAlive(bool) error { return c.setNothing() }

// SetKeepAlivePeriod returns nil, as [Conn.SetKeepAlive] does.
func (c *Conn) SetKeepAlivePeriod(time.Duration) error { return c.setNothing() }

// SetKeepAliveConfig returns nil, as [Conn.SetKeepAlive] does.
func (c *Conn) SetKeepAliveConfig(net.KeepAliveConfig) error { return c.setNothing() }

// SetReadBuffer returns nil: the ring grows by itself, to Config.RecvBuffer at most.
func (c *Conn) SetReadBuffer(int) error { return c.setNothing() }

// SetWriteBuffer returns nil: Config.SendBuffer is the link's.
func (c *Conn) SetWriteBuffer(int) error { return c.setNothing() }

// setNothing returns an error once the connection is closed, as setting a deadline does.
func (c *Conn) setNothing() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	return nil
}
