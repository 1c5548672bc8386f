//go:build !unix

package ringnet

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

// There is no network here that is better than TCP, and nothing to prove.

func bindAnyPort(syscall.RawConn, netip.Addr) (uint16, error) { return 0, errors.ErrUnsupported }

func awaitEnd(*net.TCPConn) error { return errors.ErrUnsupported }

func isQuiet(*net.TCPConn) bool { return false }

func isIPv6Only(*net.TCPListener) bool { return false }
