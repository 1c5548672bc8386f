//go:build linux

package shm

// Which user has which name. The kernel lists sockets by netlink (sock_diag(7)),
// each with its whole name and its owner, so no name can pass for another user's.
// Kernels before Linux 5.3, those without the module unix_diag, and sandboxes do
// not tell.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// namedSocket is a socket, of any user, whose name begins with ourNames.
type namedSocket struct {
	name  string
	owner uint32
}

// States of sockets, to be listed (TCP_ESTABLISHED, TCP_CLOSE and TCP_LISTEN of
// include/net/tcp_states.h).
const (
	paired      = 1 << 1
	unconnected = 1 << 7
	listening   = 1 << 10
)

var errNoOwners = fmt.Errorf("the kernel does not tell the owners of sockets: %w", errors.ErrUnsupported)

// sockets lists all in the given states, or none: the error wraps errNoOwners if the
// kernel does not tell, and is that of ctx if it ends before the list does. That
// takes the longer the more sockets this host has.
func (f *shm) sockets(ctx context.Context, states uint32) ([]namedSocket, error) {
	if f.noSocketLists {
		return nil, errNoOwners
	}
	return diagnose(ctx, states)
}

// ownsSocket reports whether this user has a socket in one of the states whose name
// matches.
func (f *shm) ownsSocket(states uint32, match func(name string) bool) (bool, error) {
	sockets, err := f.sockets(context.Background(), states)
	return slices.ContainsFunc(sockets, func(s namedSocket) bool {
		return s.owner == uint32(os.Geteuid()) && match(s.name)
	}), err
}

// isOwnListener connects to the listener with a name, for kernels that do not tell, and
// returns true if it is this user's, or else an error.
func (f *shm) isOwnListener(name string) (bool, error) {
	uid, err := listenerUser(name)
	if err != nil {
		return false, fmt.Errorf("%w, and its holder does not answer: %w", errNoOwners, err)
	}
	if uid != uint32(os.Geteuid()) {
		return false, fmt.Errorf("%w, and its holder is user %d", errNoOwners, uid)
	}
	return true, nil
}

// Of linux/unix_diag.h and linux/sock_diag.h.
const (
	diagName = 0 // UNIX_DIAG_NAME
	diagUID  = 7 // UNIX_DIAG_UID

	showName = 1 << 0 // UDIAG_SHOW_NAME
	showUID  = 1 << 6 // UDIAG_SHOW_UID

	sizeofDiagMsg = 16 // struct unix_diag_msg
)

// diagnose asks the kernel for the Unix sockets in the given states.
func diagnose(ctx context.Context, states uint32) (found []namedSocket, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, lookupError("socket AF_NETLINK", err)
	}
	defer unix.Close(fd)

	order := binary.NativeEndian
	const size = unix.SizeofNlMsghdr + 24 // and struct unix_diag_req
	b := order.AppendUint32(make([]byte, 0, size), size)
	b = order.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = append(b, make([]byte, 8)...) // sequence number, sender
	b = append(b, unix.AF_UNIX, 0, 0, 0)
	b = order.AppendUint32(b, states)
	b = order.AppendUint32(b, 0) // all inodes
	b = order.AppendUint32(b, showName|showUID)
	b = order.AppendUint64(b, ^uint64(0)) // no cookie
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, lookupError("sendto netlink", err)
	}
	answer := make([]byte, 32<<10) // as much as the kernel puts in a part
	for ctx.Err() == nil {
		// The kernel makes each part as it is asked for.
		n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, lookupError("recvfrom netlink", err)
		}
		done, err := readPart(answer[:n], &found)
		if err != nil {
			return nil, err
		}
		if done {
			return found, nil
		}
	}
	return nil, ctx.Err()
}

// lookupError is why the kernel was not asked or did not answer: errNoOwners, unless this
// process is short of descriptors or memory, of which there may be more next time.
func lookupError(call string, err error) error {
	if exhausted(err) {
		return os.NewSyscallError(call, err)
	}
	return errors.Join(errNoOwners, os.NewSyscallError(call, err))
}

// readPart adds the sockets in a part of the kernel's answer to found, and reports
// whether the part was the last.
func readPart(b []byte, found *[]namedSocket) (done bool, err error) {
	order := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		n, kind := int(order.Uint32(b)), order.Uint16(b[4:])
		if n < unix.SizeofNlMsghdr || n > len(b) {
			break
		}
		body := b[unix.SizeofNlMsghdr:n]
		b = b[min(align(n), len(b)):]
		switch {
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR && len(body) >= 4:
			return true, errors.Join(errNoOwners, syscall.Errno(-int32(order.Uint32(body))))
		case kind != unix.SOCK_DIAG_BY_FAMILY || len(body) < sizeofDiagMsg:
			return true, errNoOwners
		}
		s, err := readSocket(body[sizeofDiagMsg:])
		if err != nil {
			return true, err
		}
		if body[1] == unix.SOCK_SEQPACKET && strings.HasPrefix(s.name, ourNames) {
			*found = append(*found, s)
		}
	}
	return false, nil
}

// readSocket reads the attributes of a socket.
func readSocket(b []byte) (s namedSocket, err error) {
	order := binary.NativeEndian
	owned := false
	for len(b) >= unix.SizeofNlAttr {
		n, kind := int(order.Uint16(b)), order.Uint16(b[2:])
		if n < unix.SizeofNlAttr || n > len(b) {
			break
		}
		data := b[unix.SizeofNlAttr:n]
		b = b[min(align(n), len(b)):]
		switch {
		case kind == diagName && len(data) > 0 && data[0] == 0: // abstract
			s.name = "@" + string(data[1:])
		case kind == diagUID && len(data) == 4:
			s.owner, owned = order.Uint32(data), true
		}
	}
	if !owned {
		return s, errNoOwners
	}
	return s, nil
}

// align is how many bytes a message or attribute of n bytes takes, with padding.
func align(n int) int { return (n + 3) &^ 3 }
