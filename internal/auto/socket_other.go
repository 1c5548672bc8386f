//go:build !unix

package auto

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
)

var (
	errData    = errors.New("data has arrived")
	errStopped = os.ErrDeadlineExceeded
)

// This system has no network that is better than TCP, so there is nothing to prove.

func bindAnyPort(syscall.RawConn, netip.Addr) (uint16, error) { return 0, errors.ErrUnsupported }

func awaitEnd(*net.TCPConn) error { return errors.ErrUnsupported }

func isQuiet(*net.TCPConn) bool { return false }

func isIPv6Only(*net.TCPListener) bool { return false }
