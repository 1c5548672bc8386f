//go:build linux && cgo

package ud

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

var testGroup = netip.MustParseAddrPort("239.255.17.3:7000")

// toGroup is a handle for testGroup.
func (p packets) toGroup(t *testing.T) *addressHandle {
	t.Helper()
	h, err := p.Resolve(context.Background(), testGroup)
	require.NoError(t, err)
	return h.(*addressHandle)
}

func (p packets) join(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Join(context.Background(), testGroup, netip.Addr{}))
}

// onlyIPv4 skips a test of groups if the device's address is an IPv6 address.
func onlyIPv4(t *testing.T) {
	if _, addr := onDevice(t); !addr.Is4() {
		t.Skip("rdma_cm joins no groups of IPv6:", addr)
	}
}

// cycleOfGroup has b and a third join and leave again what a sends to.
func cycleOfGroup(t *testing.T, a, b packets) {
	t.Helper()
	c := openPackets(t, 16)
	b.join(t)
	c.join(t)
	require.ErrorIs(t, b.Join(context.Background(), testGroup, netip.Addr{}), syscall.EADDRINUSE)
	h := a.toGroup(t)
	require.Equal(t, fabric.OK, a.send(h, "hello"))
	require.Equal(t, "hello", b.next(t))
	require.Equal(t, "hello", c.next(t))
	require.NoError(t, b.Leave(testGroup, netip.Addr{}))
	require.ErrorIs(t, b.Leave(testGroup, netip.Addr{}), syscall.EADDRNOTAVAIL)
	require.NoError(t, c.Close()) // leaves, too
	require.Equal(t, fabric.OK, a.send(h, "to nobody"))
	h.Close()
}

// Datagrams that are not received from a group are lost to the group alone.
func TestGroupFloodIsLostToTheGroupAlone(t *testing.T) {
	onlyIPv4(t)
	a, b := openPackets(t, 16), openPackets(t, 16)
	b.join(t)
	group, single := a.toGroup(t), a.to(t, b)
	defer group.Close()
	defer single.Close()
	const flood = 200
	for range flood {
		require.Equal(t, fabric.OK, a.send(group, "flood"))
	}
	for range 16 {
		require.Equal(t, fabric.OK, a.send(single, "single"))
	}
	require.True(t, a.queue().drained()) // they have left, so soft-RoCE has delivered them
	flooded, singles := 0, 0
	for deadline := time.Now().Add(hang.After); singles < 16 && time.Now().Before(deadline); {
		d := []Datagram{{}}
		switch {
		case b.Receive(d) == 0:
		case d[0].Via.To == testGroup.Addr():
			flooded++
		default:
			singles++
		}
	}
	require.Equal(t, 16, singles)
	require.LessOrEqual(t, flooded, flood)
}

// A member whose queue pair has failed stays a member.
func TestGroupMemberOutlivesItsQueuePair(t *testing.T) {
	onlyIPv4(t)
	a, b := openPackets(t, 16), openPackets(t, 16)
	b.join(t)
	h := a.toGroup(t)
	defer h.Close()
	all := *b.queues.Load()
	failed := all[len(all)-1]
	require.Equal(t, testGroup, failed.group)
	require.NoError(t, failed.qp.ToError()) // to state ERR
	hang.Unless(t, func() bool {
		require.Equal(t, fabric.OK, a.send(h, "hello"))
		d := []Datagram{{}}
		return b.Receive(d) == 1 && d[0].Via.To == testGroup.Addr()
	})
	require.NoError(t, b.Leave(testGroup, netip.Addr{}))
	require.Len(t, *b.queues.Load(), 1)
}

// drained waits until everything has been sent.
func (q *queuePair) drained() bool {
	q.sending.Lock()
	defer q.sending.Unlock()
	return q.drain(0)
}

func TestGroupsThatCannotBeJoined(t *testing.T) {
	onlyIPv4(t)
	a := openPackets(t, 16)
	err := a.Join(context.Background(), testGroup, netip.MustParseAddr("127.0.0.1"))
	require.ErrorIs(t, err, errors.ErrUnsupported) // no RDMA device
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, a.Join(ended, testGroup, netip.Addr{}), context.Canceled)
	a.join(t)
	require.NoError(t, a.Close())
	require.Error(t, a.Join(context.Background(), testGroup, netip.Addr{}))
}
