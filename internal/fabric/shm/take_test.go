//go:build linux

package shm

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Descriptors may come at any moment while a socket is read, also between two system calls.
func TestReadingASocketNeverTakesDescriptors(t *testing.T) {
	for name, read := range map[string]func(s *socket) (took bool, err error){
		"doorbells": func(s *socket) (bool, error) {
			var d doorbells
			n, _, err := s.take(&d)
			return n > 0, err
		},
		"the handshake": func(s *socket) (bool, error) {
			_, _, err := s.receivePacket(make([]byte, 1), false)
			if err == unix.EAGAIN {
				return false, nil
			}
			return err == nil, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3000 {
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				require.NoError(t, err)
				s, err := pollSocket(fds[0], true, newCloser())
				require.NoError(t, err)
				sent := make(chan error, 1)
				go func() { sent <- sendDescriptor(fds[1], fds[1]) }()
				for err == nil {
					runtime.Gosched() // there may be one processor
					var took bool
					took, err = read(s)
					require.False(t, took, "a packet with a descriptor")
				}
				require.ErrorIs(t, err, errDescriptors)
				require.NoError(t, <-sent)
				require.NoError(t, unix.Close(fds[1]))
				require.NoError(t, s.close())
			}
		})
	}
}
