// Datagrams: what becomes of them, and of those who send them.

package datagram_test

import (
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/fabric/sim/datagram"
)

const latency = 10 * time.Millisecond

// virtual runs f in virtual time on a network of the link.
func virtual(t *testing.T, l datagram.Link, f func(t *testing.T, n *datagram.Network)) {
	synctest.Test(t, func(t *testing.T) { f(t, network(t, l)) })
}

// network makes a network of the link, of which nothing may be open at the end of the
// test.
func network(t testing.TB, l datagram.Link) *datagram.Network {
	n := datagram.New(l)
	t.Cleanup(func() { require.Zero(t, n.Open(), "endpoints or address handles left open") })
	return n
}

// mailbox is an endpoint for datagrams.
type mailbox struct{ fabric.DatagramEndpoint }

// openMailbox opens one at an address, with a receive queue for 4 datagrams. The test
// closes it in the end.
func openMailbox(t testing.TB, n *datagram.Network, at string) mailbox {
	t.Helper()
	e, err := n.ListenPacket(netip.MustParseAddrPort(at), fabric.DatagramOptions{
		RecvQueue: 4,
		Filter:    func(d *fabric.Datagram) bool { return d.Header[0] == 0 },
		Notify:    func() {},
		Lost:      func(error) {},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return mailbox{e}
}

// to resolves the address of another, until the test's end.
func (m mailbox) to(t testing.TB, other mailbox) fabric.AddressHandle {
	t.Helper()
	h, err := m.Resolve(t.Context(), other.LocalAddr())
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// send sends datagrams, and returns the status of the last.
func (m mailbox) send(h fabric.AddressHandle, texts ...string) fabric.Status {
	var ds []fabric.Datagram
	for _, text := range texts {
		ds = append(ds, fabric.Datagram{To: h, Buffers: [][]byte{[]byte(text)}})
	}
	m.Send(ds)
	return ds[len(ds)-1].Status
}

// all is what has arrived.
func (m mailbox) all() (texts []string) {
	b := make([]byte, 100)
	d := []fabric.Datagram{{Buffers: [][]byte{b[:2], b[2:]}}}
	for m.Receive(d) == 1 {
		texts = append(texts, string(b[:d[0].Len]))
	}
	return texts
}

func TestDatagramsAreLostTwiceThereAndOutOfOrderAsTheLinkHasIt(t *testing.T) {
	link := datagram.Link{Link: sim.Link{Seed: 7}, Loss: 0.2, Duplicates: 0.1, Reordering: 3 * latency}
	var before []string
	for range 2 { // the same again
		virtual(t, link, func(t *testing.T, n *datagram.Network) {
			a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
			b.SetRecvQueue(2000)
			h := a.to(t, b)
			for i := range 1000 {
				require.Equal(t, fabric.OK, a.send(h, strconv.Itoa(i)))
				time.Sleep(latency)
			}
			time.Sleep(link.Reordering)
			synctest.Wait()
			got := b.all()
			times, late, last := make(map[string]int), 0, 0
			for _, text := range got {
				times[text]++
				i, err := strconv.Atoi(text)
				require.NoError(t, err)
				require.Greater(t, i, last-4, "by more than Reordering")
				if i < last {
					late++
				}
				last = max(last, i)
			}
			require.InDelta(t, 200, 1000-len(times), 60)
			require.InDelta(t, 100, len(got)-len(times), 40)
			require.Greater(t, late, 100)
			if before != nil {
				require.Equal(t, before, got)
			}
			before = got
		})
	}
}

func TestDatagramSendersAreToldOfAnEnd(t *testing.T) {
	virtual(t, datagram.Link{Link: sim.Link{Latency: latency, CMTimeout: time.Second}}, func(t *testing.T, n *datagram.Network) {
		a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
		h := a.to(t, b)
		start := time.Now()
		require.NoError(t, b.Close())
		require.Equal(t, 2*latency, time.Since(start))
		require.Equal(t, fabric.Flushed, a.send(h, "too late"))
		_, err := a.Resolve(t.Context(), b.LocalAddr())
		var rejected *fabric.RejectError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, fabric.RejectNoListener, rejected.Reason)

		b = openMailbox(t, n, "10.0.0.2:1")
		require.Equal(t, fabric.Flushed, a.send(h, "to the one before"))
		h = a.to(t, b)
		n.Cut(true)
		require.NoError(t, b.Close())
		n.Cut(false)
		require.Equal(t, fabric.OK, a.send(h, "nobody knows"))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, fabric.Flushed, a.send(h, "but now"))
	})
}

func TestDatagramsPunishWhatADeviceWould(t *testing.T) {
	n := network(t, datagram.Link{})
	a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
	h, err := a.Resolve(t.Context(), b.LocalAddr())
	require.NoError(t, err)
	require.Panics(t, func() { _ = a.Close() }, "before its handles")
	require.Panics(t, func() { b.send(h, "another's handle") })
	require.Panics(t, func() { a.send(h, string(make([]byte, 4089))) })
	h.Close()
	require.Panics(t, func() { a.send(h, "a closed handle") })
	require.Panics(t, h.Close)
	require.NoError(t, a.Close())
	require.Panics(t, func() { a.Send(nil) })
}
