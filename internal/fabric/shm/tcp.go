//go:build linux

package shm

// Which user has a TCP connection of this host. The kernel lists sockets by netlink
// (sock_diag(7)), each with its owner.

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeerUser implements [fabric.Neighbor].
func (e *endpoint) PeerUser() (uid uint32, err error) { return e.sock.peer() }

// OwnsTCP reports whether a user has the end at from of an established TCP connection of this host. It
// believes this process's own user, whose processes can do anything to each other. If the kernel does
// not tell, for a sandbox refuses the question for example, the connection is no other user's.
func OwnsTCP(uid uint32, from, to netip.AddrPort) bool {
	if uid == uint32(os.Geteuid()) {
		return true
	}
	owner, err := ownerOfTCP(from, to)
	return err == nil && owner == uid
}

// Of linux/inet_diag.h.
const (
	sizeofInetDiagID  = 48
	sizeofInetDiagMsg = 4 + sizeofInetDiagID + 20

	tcpEstablished = 1
)

// ownerOfTCP asks the kernel for one TCP socket.
func ownerOfTCP(from, to netip.AddrPort) (uid uint32, err error) {
	id, err := inetDiagID(from, to)
	if err != nil {
		return 0, err
	}
	family := byte(unix.AF_INET)
	if from.Addr().Is6() {
		family = unix.AF_INET6
	}
	const size = unix.SizeofNlMsghdr + 8 + sizeofInetDiagID // and struct inet_diag_req_v2
	order := binary.NativeEndian
	b := order.AppendUint32(make([]byte, 0, size), size)
	b = order.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence number, sender
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = order.AppendUint32(b, 1<<tcpEstablished)
	b = append(b, id...)
	reply, err := askKernel(unix.NETLINK_SOCK_DIAG, b)
	if err != nil {
		return 0, errors.Join(errNoOwners, err)
	}
	switch kind, body := order.Uint16(reply[4:]), reply[unix.SizeofNlMsghdr:]; {
	case kind == unix.SOCK_DIAG_BY_FAMILY && len(body) >= sizeofInetDiagMsg && body[1] == tcpEstablished:
		return order.Uint32(body[4+sizeofInetDiagID+12:]), nil
	case kind == unix.NLMSG_ERROR && len(body) >= 4:
		return 0, syscall.Errno(-int32(order.Uint32(body)))
	}
	return 0, errNoOwners
}

// inetDiagID returns the struct inet_diag_sockid of a socket.
func inetDiagID(from, to netip.AddrPort) ([]byte, error) {
	var index uint32
	if zone := from.Addr().Zone(); zone != "" {
		i, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, err
		}
		index = uint32(i.Index)
	}
	b := binary.BigEndian.AppendUint16(make([]byte, 0, sizeofInetDiagID), from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	for _, a := range []netip.Addr{from.Addr(), to.Addr()} {
		address := [16]byte{}
		copy(address[:], a.AsSlice())
		b = append(b, address[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, index)
	return binary.NativeEndian.AppendUint64(b, ^uint64(0)), nil // no cookie
}
