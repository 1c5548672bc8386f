package rconn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

func TestOperationsFailAsThoseOfPackageNet(t *testing.T) {
	c := &Conn{
		local:  NewAddr("rdma", netip.MustParseAddrPort("10.0.0.1:1")),
		remote: NewAddr("rdma", netip.MustParseAddrPort("[::ffff:10.0.0.2]:2")),
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
		{&lostError{syscall.ETIMEDOUT, errors.New("transport retries exceeded")},
			"read rdma 10.0.0.1:1->10.0.0.2:2: connection timed out (transport retries exceeded)", true, true},
		{&ProtocolError{"FIN twice"}, "read rdma 10.0.0.1:1->10.0.0.2:2: peer broke the ringnet protocol: FIN twice", false, false},
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

func TestLostConnectionsHaveAnErrno(t *testing.T) {
	for reason, want := range map[error]syscall.Errno{
		fabric.ErrDisconnected:  syscall.ECONNRESET,
		fabric.ErrDeviceRemoved: syscall.ENETDOWN,
		fabric.ErrQueuePair:     syscall.ECONNRESET,
		syscall.ENOMEM:          syscall.ECONNRESET,
	} {
		err := lost(fmt.Errorf("fabric: %w", reason))
		require.ErrorIs(t, err, want)
		if reason == fabric.ErrDisconnected {
			require.Equal(t, want, err, "as package net says it")
			continue
		}
		require.ErrorIs(t, err, reason)
		require.ErrorContains(t, err, "fabric: "+reason.Error())
	}
}

func TestFailedWorkRequestsHaveAnErrno(t *testing.T) {
	for status := fabric.OK + 1; status <= fabric.General; status++ {
		for _, recv := range []bool{false, true} {
			want := syscall.ECONNRESET
			switch status {
			case fabric.RetryExceeded, fabric.ResponseTimeout:
				want = syscall.ETIMEDOUT
			case fabric.RNRRetryExceeded, fabric.RemoteInvalidRequest:
				want = syscall.EPROTO
			case fabric.LocalLength:
				if recv { // the peer sent more than a receive holds
					want = syscall.EPROTO
				}
			}
			err := failed(&fabric.Completion{Status: status, Vendor: 0x81, Recv: recv})
			require.ErrorIs(t, err, want, "%v", status)
			require.ErrorContains(t, err, status.String()+", vendor code 0x81")
		}
	}
}

func TestFailedHandshakesSayWhy(t *testing.T) {
	other := errors.New("other")
	require.Equal(t, other, handshakeError(other))

	nobody := handshakeError(&fabric.RejectError{Reason: fabric.RejectNoListener})
	require.ErrorIs(t, nobody, syscall.ECONNREFUSED)
	require.EqualError(t, nobody, "connect: connection refused", "as package net says it")

	told := handshakeError(fmt.Errorf("connect: %w",
		&fabric.RejectError{Reason: fabric.RejectConsumer, Private: wire.Reject{Reason: "no room"}.Append(nil)}))
	var refused *RefusedError
	require.ErrorAs(t, told, &refused)
	require.Equal(t, "no room", refused.Reason)
	require.ErrorIs(t, told, syscall.ECONNREFUSED)
	require.EqualError(t, told, "connection refused by the peer: no room")

	untold := handshakeError(&fabric.RejectError{Reason: fabric.RejectConsumer})
	require.ErrorIs(t, untold, syscall.ECONNREFUSED)
	require.ErrorContains(t, untold, "no reason given")

	for _, busy := range []*fabric.RejectError{
		{Reason: fabric.RejectConsumer, Private: wire.Full.Append(nil)},
		{Reason: fabric.RejectStale},
	} {
		err := handshakeError(busy)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorAs(t, err, &refused)
		require.True(t, refused.Busy)
	}

	strange := handshakeError(&fabric.RejectError{Reason: 5})
	require.ErrorIs(t, strange, syscall.ECONNREFUSED)
	require.ErrorContains(t, strange, "reason 5")
}
