package rdmaudp

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// The error of a receiver that refuses differs from that of an address without a receiver.
func TestDialedConnFailsWithTheReceiversReason(t *testing.T) {
	for _, test := range []struct {
		name   string
		reject error
		want   string
		stats  Stats
	}{
		{"words", fmt.Errorf("no memory here: %w", &fabric.RejectError{Reason: 5}),
			"connection refused by the peer: no memory here: connection rejected (reason 5)", Stats{Refused: 1}},
		{"full", &fabric.RejectError{Reason: fabric.RejectConsumer, Private: wire.Full.Append(nil)},
			"connection refused by the peer: the listener's backlog is full", Stats{Refused: 1}},
		{"closed", &fabric.RejectError{Reason: fabric.RejectConsumer, Private: wire.Reject{Reason: "closed"}.Append(nil)},
			"read: connection refused", Stats{Unreachable: 1}},
		{"nobody", &fabric.RejectError{Reason: fabric.RejectNoListener}, "read: connection refused", Stats{Unreachable: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := open(t, &post{resolve: func(context.Context, netip.AddrPort) error { return test.reject }}, there)
				_, err := c.Write([]byte("a"))
				require.NoError(t, err)
				_, err = c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
				require.EqualError(t, err, "read rdma-udp 10.0.0.1:1->10.0.0.2:2: "+test.want)
				require.Equal(t, test.stats, c.Stats())
				require.NoError(t, c.Close())
			})
		})
	}
}
