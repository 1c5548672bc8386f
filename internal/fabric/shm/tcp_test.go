//go:build linux

package shm

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tcpConnection returns both ends of a TCP connection, and the dialer's addresses as a listener
// sees them.
func tcpConnection(t *testing.T, address string) (dialed, accepted *net.TCPConn, from, to netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	defer l.Close()
	d, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	a, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	plain := func(a net.Addr) netip.AddrPort {
		ap := a.(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return d.(*net.TCPConn), a.(*net.TCPConn), plain(a.RemoteAddr()), plain(a.LocalAddr())
}

func TestTCPConnectionsHaveOwners(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			dialed, accepted, from, to := tcpConnection(t, address)
			owner, err := ownerOfTCP(from, to)
			require.NoError(t, err)
			require.EqualValues(t, os.Geteuid(), owner)

			own := ownUser()
			require.True(t, OwnsTCP(own, from, to))
			require.False(t, OwnsTCP(own+1, from, to))

			_, err = ownerOfTCP(netip.AddrPortFrom(from.Addr(), from.Port()+1), to)
			require.ErrorIs(t, err, syscall.ENOENT)

			// What is left of a connection that has ended counts as root's.
			require.NoError(t, dialed.Close())
			require.NoError(t, accepted.Close())
			_, err = ownerOfTCP(from, to)
			require.Error(t, err)
		})
	}
}

// A socket that only listens at the dialer's port is not a connection.
func TestTCPListenersOwnNoConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	_, err = ownerOfTCP(at, netip.MustParseAddrPort("127.0.0.1:9"))
	require.Error(t, err)
}

// Where a sandbox does not let it ask, this process gives another user no connection.
func TestTCPConnectionsHaveNoOwnersWhereNetlinkIsRefused(t *testing.T) {
	inProcess(t, nil, func() {
		_, _, from, to := tcpConnection(t, "127.0.0.1:0")
		require.NoError(t, callNetlink.with(t, unix.EPERM).refuse())
		own := ownUser()
		require.True(t, OwnsTCP(own, from, to))
		require.False(t, OwnsTCP(own+1, from, to))
		_, err := ownerOfTCP(from, to)
		require.ErrorIs(t, err, unix.EPERM)
	})
}
