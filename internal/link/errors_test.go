package link

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
)

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
			err := machine.Failed(&fabric.Completion{Status: status, Vendor: 0x81, Recv: recv})
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
	var refused *fabric.RefusedError
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
