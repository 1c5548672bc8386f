//go:build !unix

package auto

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// This system has no network that is better than TCP, so there is nothing to prove.

func bindAnyPort(syscall.RawConn, netip.Addr) (uint16, error) { return 0, errors.ErrUnsupported }

func awaitEnd(*net.TCPConn) error { return errors.ErrUnsupported }

func isQuiet(*net.TCPConn) bool { return false }

func isIPv6Only(*net.TCPListener) bool { return false }

// AwaitRead returns an error: Windows completes reads, and does not tell that one would not wait.
func (c *TCPConn) AwaitRead() error {
	return &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: errors.ErrUnsupported}
}
