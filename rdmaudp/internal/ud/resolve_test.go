//go:build linux && cgo

package ud

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// A receiver could not notify a sender that listens at IPv6 addresses alone of its end.
func TestDatagramsOfIPv6Alone(t *testing.T) {
	d := &endpoint{v6Only: true}
	_, err := d.Resolve(t.Context(), netip.MustParseAddrPort("10.0.0.1:1"))
	var wrong *net.AddrError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, &net.AddrError{Err: "non-IPv6 address", Addr: "10.0.0.1"}, wrong)
}

// A receiver may end as soon as it has answered: its notice counts even if the handle is
// not complete yet.
func TestDatagramsNoticeBeforeTheHandle(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	q := a.queue()
	q.handling.Lock() // so there is no handle yet
	goOn := sync.OnceFunc(q.handling.Unlock)
	defer goOn()
	found := make(chan AddressHandle, 1)
	go func() {
		h, _ := a.Resolve(context.Background(), b.local)
		found <- h
	}()
	var id uint64
	hang.Unless(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		watchers := b.queue().watchers
		if len(watchers) == 1 {
			id = watchers[0].ID
		}
		return len(watchers) == 1
	})
	e, err := b.request(context.Background(), a.local, request{Kind: endedKind, ID: id})
	require.NoError(t, err)
	defer e.Close()
	requireRejected(t, e, "a notice")
	goOn()
	h := (<-found).(*addressHandle)
	defer h.Close()
	require.Equal(t, fabric.Flushed, a.send(h, "to nobody"))
}

// secondAddress gives the device's interface another address of IPv4.
func secondAddress(t *testing.T) netip.Addr {
	t.Helper()
	f, addr := onDevice(t)
	if os.Getuid() != 0 || !addr.Is4() {
		t.Skip("only root can give an interface another address")
	}
	b := addr.As4()
	b[3] ^= 0x40
	second := netip.AddrFrom4(b)
	ip := func(do string) {
		out, err := exec.Command("ip", "addr", do, second.String()+"/32", "dev", os.Getenv("SOFTROCE_NETDEV")).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	ip("add")
	t.Cleanup(func() { ip("del") })
	hang.Unless(t, func() bool { // the device's table of addresses follows
		e, err := f.cm.Bind(second)
		if err == nil {
			err = e.Close()
		}
		return err == nil
	})
	return second
}

// A receiver with several addresses notifies senders from the address that they have
// asked, not from the one that it would send from by default.
func TestDatagramsNoticeOfASecondAddress(t *testing.T) {
	second := secondAddress(t)
	a, b := openPackets(t, 16), openPacketsAt(t, netip.Addr{}, 16)
	ctx, cancel := context.WithTimeout(context.Background(), hang.After)
	defer cancel()
	handle, err := a.Resolve(ctx, netip.AddrPortFrom(second, b.local.Port()))
	require.NoError(t, err)
	h := handle.(*addressHandle)
	defer h.Close()
	b.mu.Lock()
	watchers := b.queue().watchers
	b.mu.Unlock()
	require.Len(t, watchers, 1)
	require.ErrorAs(t, b.notifyWatcher(ctx, watchers[0]), new(*fabric.RejectError))
	require.True(t, h.gone.Load())
}

// When the receiver has been found again, datagrams go to the Ethernet address that it
// has by then.
func TestDatagramsFindTheReceiverAgain(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	h, watching, err := a.resolveReceiver(t.Context(), b.local)
	require.NoError(t, err)
	defer h.Close()
	ah := func() any {
		h.q.sending.Lock()
		defer h.q.sending.Unlock()
		return h.ah
	}
	first := ah()
	watching.Receive(rdmacore.Event{Kind: rdmacore.Unreachable, Status: -int(syscall.ETIMEDOUT)}) // after 70 s
	hang.Unless(t, func() bool { return ah() != first })
	require.Equal(t, fabric.OK, a.send(h, "hello"))
	require.Equal(t, "hello", b.next(t))
	require.NoError(t, b.Close())
	requireGone(t, h)
}
