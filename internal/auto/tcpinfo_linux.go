package auto

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// roundTrip returns the smoothed round-trip time that TCP has measured, or 0 if it is not known.
func roundTrip(c *net.TCPConn) (rtt time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			rtt = time.Duration(info.Rtt) * time.Microsecond
		}
	})
	return rtt
}
