//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

var errShortAnswer = errors.New("netlink's answer ends early")

// askKernel sends a request to a protocol of netlink(7), and calls each with the message that
// answers it or, with NLM_F_DUMP, with each of them, until ctx ends. If the kernel answers with an
// error, that is a bare syscall.Errno.
func askKernel(ctx context.Context, protocol int, kind, flags uint16, request []byte, each func(b []byte) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("socket AF_NETLINK", err)
	}
	defer unix.Close(fd)
	return askBy(ctx, fd, kind, flags, request, each)
}

// askBy is askKernel with a socket. To that others may send, too, who have CAP_NET_ADMIN in its network
// namespace: the kernel's messages are those of sender 0.
func askBy(ctx context.Context, fd int, kind, flags uint16, request []byte, each func(b []byte) error) error {
	order := binary.NativeEndian
	b := order.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(request)))
	b = order.AppendUint16(b, kind)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = append(b, make([]byte, 8)...) // sequence number, sender
	b = append(b, request...)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto netlink", err)
	}
	part := make([]byte, 32<<10) // as much as the kernel puts in one
	for ctx.Err() == nil {
		// The kernel makes each part as it is asked for.
		n, from, err := unix.Recvfrom(fd, part, unix.MSG_DONTWAIT)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("recvfrom netlink", err)
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 {
			continue
		}
		messages, err := syscall.ParseNetlinkMessage(part[:max(n, 0)])
		if err != nil {
			return os.NewSyscallError("netlink", err)
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return nil
			case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
				return syscall.Errno(-int32(order.Uint32(m.Data)))
			}
			if err := each(m.Data); err != nil || flags&unix.NLM_F_DUMP == 0 {
				return err
			}
		}
	}
	return ctx.Err()
}
