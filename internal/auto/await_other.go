//go:build !unix

package auto

import (
	"errors"
	"net"
)

// AwaitRead returns an error: Windows completes reads, and does not tell that one would not wait.
func (c *TCPConn) AwaitRead() error {
	return &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: errors.ErrUnsupported}
}
