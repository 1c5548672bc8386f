// Datagrams: what becomes of them, and of those who send them.

package sim_test

import (
	"context"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// mailbox is an endpoint for datagrams, and how often it was notified.
type mailbox struct {
	fabric.DatagramEndpoint
	notified *int
	lost     *error
}

// openMailbox opens one at an address, with a receive queue for 4 datagrams. The test
// closes it in the end.
func openMailbox(t testing.TB, n *sim.Network, at string) mailbox {
	t.Helper()
	m := mailbox{notified: new(int), lost: new(error)}
	var err error
	m.DatagramEndpoint, err = n.ListenPacket(netip.MustParseAddrPort(at), fabric.DatagramOptions{
		RecvQueue: 4,
		Filter:    func(d *fabric.Datagram) bool { return d.Header[0] == 0 },
		Notify:    func() { *m.notified++ },
		Lost:      func(err error) { *m.lost = err },
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// to resolves the address of another, until the test's end.
func (m mailbox) to(t testing.TB, other mailbox) fabric.AddressHandle {
	t.Helper()
	h, err := m.Resolve(ctx, other.LocalAddr())
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

func TestDatagramsArriveInOrderAfterTheLatency(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:0")
		start := time.Now()
		h := a.to(t, b)
		assert.Equal(t, 2*latency, time.Since(start))
		b.Arm()
		require.Equal(t, fabric.OK, a.send(h, "one", "", "three"))
		time.Sleep(latency - time.Nanosecond)
		synctest.Wait()
		require.Empty(t, b.all())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 1, *b.notified)
		require.Equal(t, []string{"one", "", "three"}, b.all())
	})
}

func TestDatagramSaysWhereItIsFrom(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := openMailbox(t, n, "[::]:7"), openMailbox(t, n, "10.0.0.2:1")
	for _, m := range []mailbox{a, b} {
		require.Equal(t, fabric.OK, m.send(m.to(t, b), "hello"))
		d := []fabric.Datagram{{}}
		require.Equal(t, 1, b.Receive(d))
		require.Equal(t, 5, d[0].Len)
		require.Equal(t, netip.MustParseAddr("10.0.0.2"), d[0].Via.To)
		require.Equal(t, netip.AddrPortFrom(b.LocalAddr().Addr(), m.LocalAddr().Port()), d[0].From)
	}
}

func TestDatagramsThatAreNotWantedAreDropped(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
	h := a.to(t, b)
	a.Send([]fabric.Datagram{{To: h, Header: [8]byte{1}}, {To: h, Buffers: [][]byte{[]byte("wanted")}}})
	require.Equal(t, []string{"wanted"}, b.all())
}

func TestDatagramsFindTheReceiveQueueFull(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
	h := a.to(t, b)
	require.Equal(t, fabric.OK, a.send(h, "0", "1", "2", "3", "4", "5"))
	require.EqualValues(t, 2, n.Overruns())
	require.Equal(t, []string{"0", "1", "2", "3"}, b.all())
	b.SetRecvQueue(1)
	a.send(h, "6", "7")
	require.EqualValues(t, 3, n.Overruns())
	require.Equal(t, []string{"6"}, b.all())
}

func TestDatagramsAreLostTwiceThereAndOutOfOrderAsTheLinkHasIt(t *testing.T) {
	link := sim.Link{Loss: 0.2, Duplicates: 0.1, Reordering: 3 * latency, Seed: 7}
	var before []string
	for range 2 { // the same again
		virtual(t, link, func(t *testing.T, n *sim.Network) {
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
	virtual(t, sim.Link{Latency: latency, CMTimeout: time.Second}, func(t *testing.T, n *sim.Network) {
		a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
		h := a.to(t, b)
		start := time.Now()
		require.NoError(t, b.Close())
		require.Equal(t, 2*latency, time.Since(start))
		require.Equal(t, fabric.Flushed, a.send(h, "too late"))
		_, err := a.Resolve(ctx, b.LocalAddr())
		require.Equal(t, fabric.RejectNoListener, reason(t, err))

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

func TestDatagramsAndRequestsAreLostWhenTheCableIsCut(t *testing.T) {
	virtual(t, sim.Link{Latency: latency, CMTimeout: time.Second}, func(t *testing.T, n *sim.Network) {
		a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
		h := a.to(t, b)
		n.CutCard(b.LocalAddr().Addr(), true)
		require.Equal(t, fabric.OK, a.send(h, "lost"))
		_, err := a.Resolve(ctx, b.LocalAddr())
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		n.CutCard(b.LocalAddr().Addr(), false)
		require.Equal(t, fabric.OK, a.send(h, "found"))
		time.Sleep(latency)
		synctest.Wait()
		require.Equal(t, []string{"found"}, b.all())

		n.Blackhole(b.LocalAddr().Addr())
		early, cancel := context.WithTimeout(ctx, latency)
		defer cancel()
		_, err = a.Resolve(early, b.LocalAddr())
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestDatagramsWithoutADevice(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
	h := a.to(t, b)
	n.RemoveDevice()
	require.ErrorIs(t, *a.lost, fabric.ErrDeviceRemoved)
	require.Equal(t, fabric.Flushed, a.send(h, "lost"))
	_, err := a.Resolve(ctx, b.LocalAddr())
	require.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	_, err = n.ListenPacket(netip.AddrPort{}, fabric.DatagramOptions{})
	require.ErrorIs(t, err, fabric.ErrDeviceRemoved)
}

func TestDatagramsHavePortsOfTheirOwn(t *testing.T) {
	n := network(t, sim.Link{})
	l := listen(t, n, 1)
	defer l.Close()
	openMailbox(t, n, server.String())
	for _, at := range []string{server.String(), netip.AddrPortFrom(netip.IPv6Unspecified(), server.Port()).String()} {
		_, err := n.ListenPacket(netip.MustParseAddrPort(at), fabric.DatagramOptions{})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
	require.NotEqual(t, openMailbox(t, n, "10.0.0.1:0").LocalAddr(), openMailbox(t, n, "10.0.0.1:0").LocalAddr())
}

func TestDatagramsPunishWhatADeviceWould(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
	h, err := a.Resolve(ctx, b.LocalAddr())
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

var group = netip.MustParseAddrPort("239.1.2.3:7")

func TestDatagramsToAGroupAreItsMembers(t *testing.T) {
	n := network(t, sim.Link{})
	a, b, c := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "[::]:2"), openMailbox(t, n, "10.0.0.3:1")
	h, err := a.Resolve(ctx, group)
	require.NoError(t, err, "without members")
	defer h.Close()
	require.Equal(t, fabric.OK, a.send(h, "to nobody"))
	require.NoError(t, a.Join(ctx, group, netip.Addr{}))
	require.NoError(t, b.Join(ctx, group, netip.MustParseAddr("10.0.0.2")))
	require.NoError(t, c.Join(ctx, netip.AddrPortFrom(group.Addr(), 8), netip.Addr{}))
	require.Equal(t, fabric.OK, a.send(h, "to both"))
	require.Equal(t, []string{"to both"}, a.all())
	d := []fabric.Datagram{{}}
	require.Equal(t, 1, b.Receive(d))
	require.Equal(t, a.LocalAddr(), d[0].From)
	require.Equal(t, group.Addr(), d[0].Via.To)

	require.NoError(t, a.Leave(group, a.LocalAddr().Addr()))
	n.CutCard(netip.MustParseAddr("10.0.0.2"), true)
	require.Equal(t, fabric.OK, a.send(h, "to none that it gets to"))
	n.CutCard(netip.MustParseAddr("10.0.0.2"), false)
	require.NoError(t, b.Close())
	require.Equal(t, fabric.OK, a.send(h, "to nobody"))
	for _, m := range []mailbox{a, b, c} {
		require.Empty(t, m.all())
	}
}

func TestDatagramsUnderWayToAMemberThatLeavesAreLost(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		a := openMailbox(t, n, "10.0.0.1:1")
		require.NoError(t, a.Join(ctx, group, netip.Addr{}))
		h, err := a.Resolve(ctx, group)
		require.NoError(t, err)
		defer h.Close()
		a.send(h, "too late")
		require.NoError(t, a.Leave(group, netip.Addr{}))
		time.Sleep(latency)
		synctest.Wait()
		require.Empty(t, a.all())
	})
}

func TestMembershipIsTakenAndGivenUpOnce(t *testing.T) {
	n := network(t, sim.Link{})
	a := openMailbox(t, n, "10.0.0.1:1")
	require.ErrorIs(t, a.Leave(group, netip.Addr{}), syscall.EADDRNOTAVAIL)
	require.NoError(t, a.Join(ctx, group, netip.Addr{}))
	require.ErrorIs(t, a.Join(ctx, group, a.LocalAddr().Addr()), syscall.EADDRINUSE)
	require.NoError(t, a.Join(ctx, group, netip.MustParseAddr("10.0.1.1")))
	require.ErrorIs(t, a.Join(ctx, a.LocalAddr(), netip.Addr{}), syscall.EINVAL)
	require.NoError(t, a.Leave(group, a.LocalAddr().Addr()))
	require.ErrorIs(t, a.Leave(group, a.LocalAddr().Addr()), syscall.EADDRNOTAVAIL)
	n.RemoveDevice()
	require.ErrorIs(t, a.Join(ctx, group, netip.Addr{}), fabric.ErrDeviceRemoved)
}

func TestDatagramsToAGroupHaveAReceiveQueueOfTheirOwn(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := openMailbox(t, n, "10.0.0.1:1"), openMailbox(t, n, "10.0.0.2:1")
	require.NoError(t, b.Join(ctx, group, netip.Addr{}))
	h, err := a.Resolve(ctx, group)
	require.NoError(t, err)
	defer h.Close()
	a.send(h, "0", "1", "2", "3", "4")
	a.send(a.to(t, b), "hello")
	require.EqualValues(t, 1, n.Overruns())
	require.ElementsMatch(t, []string{"0", "1", "2", "3", "hello"}, b.all())
}
