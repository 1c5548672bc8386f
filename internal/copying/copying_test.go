package copying

import (
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// sink says which of its methods were called.
type sink struct{ calls []string }

func (s *sink) Write(p []byte) (int, error) {
	s.calls = append(s.calls, "Write")
	return len(p), nil
}

func (s *sink) ReadFrom(r io.Reader) (int64, error) {
	s.calls = append(s.calls, "ReadFrom")
	return io.Copy(io.Discard, r)
}

// socket is a sink with a descriptor.
type socket struct{ sink }

func (*socket) SyscallConn() (syscall.RawConn, error) { return nil, syscall.EINVAL }

// carried is a connection of ringnet.
type carried struct{ socket }

func (*carried) Carrier() string { return "shm" }

func TestToWritesByItself(t *testing.T) {
	var s sink
	n, err := To(&s, onlyRead())
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	require.Equal(t, []string{"Write"}, s.calls)
}

func TestFromLeavesReadingToTheWriterIfThatSparesABuffer(t *testing.T) {
	var memory sink
	n, err := From(&memory, onlyRead())
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	require.Equal(t, []string{"ReadFrom"}, memory.calls)

	var tcp socket
	n, err = From(&tcp, onlyRead())
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	require.Equal(t, []string{"Write"}, tcp.calls)
}

func onlyRead() io.Reader { return struct{ io.Reader }{strings.NewReader("hello")} }

func TestHasDescriptor(t *testing.T) {
	require.True(t, HasDescriptor(os.Stdin))
	require.True(t, HasDescriptor(new(net.TCPConn)))
	require.True(t, HasDescriptor(io.LimitReader(os.Stdin, 1)))
	require.False(t, HasDescriptor(new(carried)))
	require.False(t, HasDescriptor(strings.NewReader("")))
	require.False(t, HasDescriptor(io.LimitReader(strings.NewReader(""), 1)))
}
