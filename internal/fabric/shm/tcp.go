//go:build linux

package shm

// Which user has a TCP connection of this host. The kernel lists sockets by netlink
// (sock_diag(7)), each with its owner.

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeerUser implements [fabric.Neighbor].
func (e *endpoint) PeerUser() (uid uint32, err error) {
	if !e.passive && e.step == idle {
		return 0, syscall.ENOTCONN
	}
	return e.user, nil
}

// OwnsTCP reports whether a user has the end at from of an established TCP connection of this host. It
// believes this process's own user, whose processes can do anything to each other. If the kernel does
// not tell, for a sandbox refuses the question for example, the connection is no other user's.
func OwnsTCP(uid uint32, from, to netip.AddrPort) bool {
	if uid == ownUser() {
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
	b := []byte{family, unix.IPPROTO_TCP, 0, 0} // struct inet_diag_req_v2
	b = append(binary.NativeEndian.AppendUint32(b, 1<<tcpEstablished), id...)
	err = askKernel(context.Background(), unix.NETLINK_SOCK_DIAG, unix.SOCK_DIAG_BY_FAMILY, 0, b, func(socket []byte) error {
		if len(socket) < sizeofInetDiagMsg || socket[1] != tcpEstablished {
			return errShortAnswer
		}
		uid = binary.NativeEndian.Uint32(socket[4+sizeofInetDiagID+12:])
		return nil
	})
	return uid, err
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
