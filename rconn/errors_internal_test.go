package rconn

import (
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
)

func TestOperationsFailAsThoseOfPackageNet(t *testing.T) {
	c := &Conn{
		local:  fabric.NewAddr("rdma", netip.MustParseAddrPort("10.0.0.1:1")),
		remote: fabric.NewAddr("rdma", netip.MustParseAddrPort("[::ffff:10.0.0.2]:2")),
	}
	require.NoError(t, c.opError("read", nil))
	require.Equal(t, io.EOF, c.opError("read", io.EOF), "bare")

	for _, test := range []struct {
		err                error
		text               string
		timeout, temporary bool
	}{
		{net.ErrClosed, "read rdma 10.0.0.1:1->10.0.0.2:2: use of closed network connection", false, false},
		{os.ErrDeadlineExceeded, "read rdma 10.0.0.1:1->10.0.0.2:2: i/o timeout", true, true},
		{syscall.EPIPE, "read rdma 10.0.0.1:1->10.0.0.2:2: read: broken pipe", false, false},
		{syscall.ECONNRESET, "read rdma 10.0.0.1:1->10.0.0.2:2: read: connection reset by peer", false, false},
		{syscall.ETIMEDOUT, "read rdma 10.0.0.1:1->10.0.0.2:2: read: connection timed out", true, true},
		{&link.ProtocolError{Reason: "FIN twice"}, "read rdma 10.0.0.1:1->10.0.0.2:2: peer broke the ringnet protocol: FIN twice", false, false},
	} {
		err := c.opError("read", test.err)
		require.EqualError(t, err, test.text)
		op, ok := err.(*net.OpError)
		require.True(t, ok)
		require.Equal(t, "read", op.Op)
		require.Equal(t, "rdma", op.Net)
		require.Equal(t, c.local, op.Source)
		require.Equal(t, c.remote, op.Addr)
		require.ErrorIs(t, err, test.err)
		require.Equal(t, test.timeout, op.Timeout(), test.text)
		require.Equal(t, test.temporary, op.Temporary(), test.text)
	}
}
