//go:build linux && cgo

package ud

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/wire"
)

// requestOf is a request to watch, of no device, from an address of a network.
func requestOf(host byte, id uint64) pendingRequest {
	r := request{Kind: watchKind, ID: id, Port: 1}
	return pendingRequest{r, new(rdmacore.ID), netip.AddrFrom4([4]byte{10, 0, 0, host})}
}

// However many requests to watch come from one host, they displace no other host's.
func TestDatagramWatchersOfOneHost(t *testing.T) {
	d, q := &endpoint{}, &queuePair{}
	d.queues.Store(&[]*queuePair{q})
	for host := range byte(2) {
		_, ok := d.addWatcher(q, requestOf(host, 0))
		require.True(t, ok)
	}
	for id := range uint64(maxWatchers + 50) {
		forgotten, ok := d.addWatcher(q, requestOf(77, id))
		require.True(t, ok)
		for _, w := range forgotten {
			require.Equal(t, byte(77), w.from.As4()[3])
			require.Equal(t, id-(maxWatchers-2), w.ID, "its own oldest")
		}
	}
	require.Len(t, q.watchers, maxWatchers)
	require.True(t, d.remove(q, false))
	_, ok := d.addWatcher(q, requestOf(1, 1))
	require.False(t, ok, "it has gone")
}

// The same is so of requests that wait for the other one of their sender.
func TestDatagramRequestsOfOneHost(t *testing.T) {
	d := &endpoint{}
	d.pair(requestOf(1, 7))
	for id := range uint64(2 * maxRequests) {
		other, crowded := d.pair(requestOf(77, id))
		require.Nil(t, other.id)
		if crowded.id != nil {
			require.Equal(t, byte(77), crowded.from.As4()[3])
		}
	}
	require.Len(t, d.requests, maxRequests)
	asks := requestOf(1, 7)
	asks.Kind = askKind
	watches, _ := d.pair(asks)
	require.Equal(t, uint64(7), watches.ID)
	d.closed = true
	_, rejected := d.pair(asks)
	require.Equal(t, asks, rejected)
}

// A goroutine that waits for a device keeps no request from being answered.
func TestDatagramsAnswerWhileADeviceIsWaitedFor(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	h := b.to(t, a)
	q := b.queue()
	q.sending.Lock() // so Close waits, as it does for what the device has not sent yet
	goOn := sync.OnceFunc(q.sending.Unlock)
	defer goOn()
	closed := make(chan struct{})
	go func() {
		h.Close()
		close(closed)
	}()
	begun := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.handles) == 0
	}
	hang.Unless(t, begun)
	a.to(t, b).Close()
	goOn()
	<-closed
}

// A receiver that has no memory for a queue pair answers what it lacks, and the sender asks again.
func TestDatagramsToAReceiverWithoutMemory(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	b.discard(b.queue()) // so that it has to make another
	used, _ := budget.Process.State()
	budget.Process.SetLimit(used.Registered)
	t.Cleanup(func() { budget.Process.SetLimit(0) })
	_, err := a.ask(context.Background(), b.local, 1)
	require.True(t, isFull(err), "%v", err)
	var reject *fabric.RejectError
	require.ErrorAs(t, err, &reject)
	said := wire.DecodeReject(reject.Private).Reason
	require.Contains(t, said, "KiB more would have to be registered")

	found := make(chan AddressHandle, 1)
	go func() {
		h, _ := a.Resolve(context.Background(), b.local)
		found <- h
	}()
	hang.Unless(t, func() bool { // its first try has failed
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.handles) > 1
	})
	budget.Process.SetLimit(0)
	h := (<-found).(*addressHandle)
	defer h.Close()
	require.Equal(t, fabric.OK, a.send(h, "hello"))
	require.Equal(t, "hello", b.next(t))
}
