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
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// namedSocket is a socket of any user.
type namedSocket struct {
	kind  byte // unix.SOCK_STREAM or another
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
	return diagnose(ctx, states, unix.SOCK_SEQPACKET, ourNames)
}

// StreamListeners lists the names, by the users who have them, of the sockets of this network namespace
// that listen for streams, if they begin so. The error wraps [errors.ErrUnsupported] if the kernel does not
// tell.
func StreamListeners(ctx context.Context, prefix string) (byUser map[int][]string, err error) {
	found, err := diagnose(ctx, listening, unix.SOCK_STREAM, prefix)
	byUser = make(map[int][]string)
	for _, s := range found {
		byUser[int(s.owner)] = append(byUser[int(s.owner)], s.name)
	}
	return byUser, err
}

// ownsSocket reports whether this user has a socket in one of the states whose name
// matches.
func (f *shm) ownsSocket(states uint32, match func(name string) bool) (bool, error) {
	sockets, err := f.sockets(context.Background(), states)
	return slices.ContainsFunc(sockets, func(s namedSocket) bool {
		return s.owner == ownUser() && match(s.name)
	}), err
}

// isOwnListener connects to the listener with a name, for kernels that do not tell, and
// returns true if it is this user's, or else an error.
func (f *shm) isOwnListener(name string) (bool, error) {
	uid, err := listenerUser(name)
	if err != nil {
		return false, fmt.Errorf("%w, and its holder does not answer: %w", errNoOwners, err)
	}
	if uid != ownUser() {
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

// diagnose asks the kernel for the Unix sockets of a kind, in the given states, whose names begin so.
func diagnose(ctx context.Context, states uint32, kind byte, prefix string) (found []namedSocket, err error) {
	order := binary.NativeEndian
	b := []byte{unix.AF_UNIX, 0, 0, 0} // struct unix_diag_req
	b = order.AppendUint32(b, states)
	b = order.AppendUint32(b, 0) // all inodes
	b = order.AppendUint32(b, showName|showUID)
	b = order.AppendUint64(b, ^uint64(0)) // no cookie
	err = askKernel(ctx, unix.NETLINK_SOCK_DIAG, unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, b, func(answer []byte) error {
		s, err := readSocket(answer)
		if err == nil && s.kind == kind && strings.HasPrefix(s.name, prefix) {
			found = append(found, s)
		}
		return err
	})
	if err != nil {
		return nil, lookupError(ctx, err)
	}
	return found, nil
}

// lookupError is why the kernel was not asked or did not answer: errNoOwners, unless ctx has ended,
// or this process is short of descriptors or memory, of which there may be more next time.
func lookupError(ctx context.Context, err error) error {
	if exhausted(err) || err == ctx.Err() {
		return err
	}
	return errors.Join(errNoOwners, err)
}

// readSocket reads what the kernel tells of a socket.
func readSocket(b []byte) (s namedSocket, err error) {
	if len(b) < sizeofDiagMsg {
		return s, errShortAnswer
	}
	order := binary.NativeEndian
	owned := false
	s.kind = b[1]
	for b = b[sizeofDiagMsg:]; len(b) >= unix.SizeofNlAttr; {
		n, attribute := int(order.Uint16(b)), order.Uint16(b[2:])
		if n < unix.SizeofNlAttr || n > len(b) {
			break
		}
		data := b[unix.SizeofNlAttr:n]
		b = b[min((n+3)&^3, len(b)):] // with padding
		switch {
		case attribute == diagName && len(data) > 0 && data[0] == 0: // abstract
			s.name = "@" + string(data[1:])
		case attribute == diagUID && len(data) == 4:
			s.owner, owned = order.Uint32(data), true
		}
	}
	if !owned {
		return s, errNoOwners
	}
	return s, nil
}
