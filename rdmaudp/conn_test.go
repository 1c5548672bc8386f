package rdmaudp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/rdmaudp/internal/ud"
)

// Package packettest, which package ringnet runs over each network, tests that a PacketConn does
// what package net's do. The tests here need events that no network causes at will.

var (
	here  = netip.MustParseAddrPort("10.0.0.1:1")
	there = netip.MustParseAddrPort("10.0.0.2:2")
)

// post is a fabric, and its one queue pair. The test stands for all its peers.
type post struct {
	ud.Options
	resolve func(ctx context.Context, to netip.AddrPort) error
	status  func(to netip.AddrPort) fabric.Status // of what is sent; nil means OK
	sent    []string
	closed  []netip.AddrPort // handles
	inbox   []ud.Datagram
	local   netip.AddrPort // of the queue pair, if valid
	join    error          // that Join returns
	joined  []string
	left    []string
}

type postHandle struct {
	p  *post
	to netip.AddrPort
}

func (h *postHandle) Close() { h.p.closed = append(h.p.closed, h.to) }

func (p *post) ListenPacket(_ netip.AddrPort, o ud.Options) (ud.Endpoint, error) {
	p.Options = o
	return p, nil
}

func (p *post) LocalAddr() netip.AddrPort {
	if p.local.IsValid() {
		return p.local
	}
	return here
}

func (p *post) Limits() ud.Limits {
	return ud.Limits{MaxMessage: 1000}
}
func (p *post) SetRecvQueue(n int) { p.RecvQueue = n }

func (p *post) Join(_ context.Context, group netip.AddrPort, card netip.Addr) error {
	p.joined = append(p.joined, fmt.Sprint(group, " at ", card))
	return p.join
}

func (p *post) Leave(group netip.AddrPort, card netip.Addr) error {
	p.left = append(p.left, fmt.Sprint(group, " at ", card))
	return nil
}

func (p *post) Arm()         {}
func (p *post) Close() error { return nil }

func (p *post) Resolve(ctx context.Context, to netip.AddrPort) (ud.AddressHandle, error) {
	if p.resolve != nil {
		if err := p.resolve(ctx, to); err != nil {
			return nil, err
		}
	}
	return &postHandle{p, to}, nil
}

func (p *post) Send(ds []ud.Datagram) {
	for i := range ds {
		to := ds[i].To.(*postHandle).to
		if p.status != nil {
			ds[i].Status = p.status(to)
		}
		if ds[i].Status == fabric.OK {
			h, _ := ud.DecodeHeader(ds[i].Header)
			p.sent = append(p.sent, fmt.Sprintf("%d:%s", h.Sequence, ds[i].Buffers[0]))
		}
	}
}

func (p *post) Receive(ds []ud.Datagram) (n int) {
	for ; n < len(ds) && len(p.inbox) > 0; p.inbox = p.inbox[1:] {
		d := p.inbox[0]
		if p.Filter(&d) {
			d.Len = copy(ds[n].Buffers[0], d.Buffers[0])
			d.Buffers = ds[n].Buffers
			ds[n] = d
			n++
		}
	}
	return n
}

// arrives makes a datagram arrive.
func (p *post) arrives(from netip.AddrPort, h ud.Header, text string) {
	p.arrivesBy(ud.Via{}, from, h, text)
}

// arrivesBy makes a datagram arrive by a way.
func (p *post) arrivesBy(via ud.Via, from netip.AddrPort, h ud.Header, text string) {
	d := ud.Datagram{From: from, Via: via, Buffers: [][]byte{[]byte(text)}, Len: len(text)}
	h.Put(&d.Header)
	p.inbox = append(p.inbox, d)
	p.Notify()
}

func open(t *testing.T, p *post, remote netip.AddrPort) *PacketConn {
	t.Helper()
	c, err := newPacketConn(p, options{remote: remote})
	require.NoError(t, err)
	return c
}

func read(t *testing.T, c *PacketConn) string {
	t.Helper()
	b := make([]byte, 100)
	n, err := c.Read(b)
	require.NoError(t, err)
	return string(b[:n])
}

func write(t *testing.T, c *PacketConn, text string, to netip.AddrPort) {
	t.Helper()
	_, err := c.WriteToUDPAddrPort([]byte(text), to)
	require.NoError(t, err)
}

// A Write to a receiver that is being looked for does not delay Writes to others.
func TestWritesDoNotWaitForReceiversToBeFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := make(chan struct{})
		p := &post{resolve: func(_ context.Context, to netip.AddrPort) error {
			if to == there {
				<-found
			}
			return nil
		}}
		c := open(t, p, netip.AddrPort{})
		write(t, c, "a", there)
		write(t, c, "b", there)
		write(t, c, "c", here)
		synctest.Wait()
		require.Equal(t, []string{"0:c"}, p.sent)
		close(found)
		synctest.Wait()
		write(t, c, "d", there)
		require.Equal(t, []string{"0:c", "0:a", "1:b", "2:d"}, p.sent)
		require.NoError(t, c.Close())
		require.Len(t, p.closed, 2)
	})
}

// A receiver that does not answer takes no more of the room than others that are being
// looked for.
func TestWritesHeldForReceiversAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{})
		p := &post{resolve: func(ctx context.Context, to netip.AddrPort) error {
			if to == there {
				<-ctx.Done()
				return ctx.Err()
			}
			<-slow
			return nil
		}}
		c := open(t, p, netip.AddrPort{})
		text := string(make([]byte, 1000))
		const datagrams, others = 2 * maxHeld / 1000, 100
		for range datagrams {
			write(t, c, text, there)
		}
		held := uint64(maxHeld / (1000 + ud.HeaderSize))
		require.Equal(t, datagrams-held, c.Stats().Dropped)
		var want []string
		for i := range others {
			write(t, c, text, here)
			want = append(want, fmt.Sprintf("%d:%s", i, text))
		}
		require.Equal(t, datagrams-held+others, c.Stats().Dropped)
		require.LessOrEqual(t, c.sender.heldBytes, maxHeld)
		close(slow)
		synctest.Wait()
		require.Equal(t, want, p.sent)
		time.Sleep(resolveWithin)
		synctest.Wait()
		require.Equal(t, held-others, c.Stats().Unreachable)
		require.Zero(t, c.sender.heldBytes)
		require.NotContains(t, c.sender.receivers, there)

		write(t, c, "still looked for", there)
		start := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, closeWithin, time.Since(start))
	})
}

// If a receiver does not answer, the error is EHOSTUNREACH, as for UDP, and not that of a
// deadline, for the caller has set none.
func TestReceiverThatDoesNotAnswerIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &post{resolve: func(ctx context.Context, _ netip.AddrPort) error { <-ctx.Done(); return ctx.Err() }}
		c := open(t, p, there)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.EHOSTUNREACH)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.Close())
	})
}

// Reads and writes that are under way when the device is removed, or begin later, fail. They do
// not wait for Close.
func TestDeviceRemovedFailsAllCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &post{}
		c := open(t, p, netip.AddrPort{})
		defer c.Close()
		reads := make(chan error)
		for range 2 {
			go func() {
				_, _, err := c.ReadFrom(make([]byte, 10))
				reads <- err
			}()
		}
		synctest.Wait()
		p.Lost(fabric.ErrDeviceRemoved)
		_, written := c.WriteToUDPAddrPort([]byte("hello"), there)
		_, _, later := c.ReadFrom(make([]byte, 10))
		for _, err := range []error{<-reads, <-reads, written, later} {
			require.ErrorIs(t, err, syscall.ENETDOWN)
			require.ErrorContains(t, err, "RDMA device removed")
		}
	})
}

// Each datagram counts as 4 KiB, and there is room for one at least.
func TestReadBufferIsInDatagrams(t *testing.T) {
	p := &post{}
	c := open(t, p, netip.AddrPort{})
	for bytes, want := range map[int]int{-1: 256, 0: 256, 1: 1, 64 << 10: 16} {
		require.NoError(t, c.SetReadBuffer(bytes))
		require.Equal(t, want, p.RecvQueue, "%d bytes", bytes)
	}
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.SetReadBuffer(1), net.ErrClosed)
}

func TestHandlesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &post{}
		c := open(t, p, netip.AddrPort{})
		at := func(i int) netip.AddrPort { return netip.AddrPortFrom(there.Addr(), uint16(i+1)) }
		for i := range maxReceivers {
			write(t, c, "hello", at(i))
			synctest.Wait()
			write(t, c, "hello", at(i))
		}
		write(t, c, "again", at(0))
		require.Empty(t, p.closed)
		write(t, c, "hello", at(maxReceivers))
		synctest.Wait()
		require.Equal(t, []netip.AddrPort{at(1)}, p.closed)
		require.NoError(t, c.Close())
		require.Len(t, p.closed, maxReceivers+1)
	})
}

// Datagrams for a receiver that has gone go to its successor at the address.
func TestReceiverThatHasGoneIsLookedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := false
		p := &post{
			status: func(netip.AddrPort) fabric.Status {
				if gone {
					return fabric.Flushed
				}
				return fabric.OK
			},
			resolve: func(context.Context, netip.AddrPort) error { gone = false; return nil },
		}
		c := open(t, p, netip.AddrPort{})
		write(t, c, "a", there)
		synctest.Wait()
		gone = true
		ms := []Message{{Buffers: [][]byte{[]byte("b")}}, {Buffers: [][]byte{[]byte("c")}}}
		for i := range ms {
			ms[i].Addr = net.UDPAddrFromAddrPort(there)
		}
		n, err := c.WriteBatch(ms, 0)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		synctest.Wait()
		require.Equal(t, []string{"0:a", "0:b", "1:c"}, p.sent)
		require.Equal(t, []netip.AddrPort{there}, p.closed)

		// If the successor goes too, and has none, they are lost.
		p.resolve = nil
		gone = true
		write(t, c, "d", there)
		synctest.Wait()
		require.EqualValues(t, 1, c.Stats().Unreachable)
		require.NoError(t, c.Close())
		require.EqualValues(t, 3, c.Stats().Sent)
	})
}

// A receiver that evicts senders to admit others may end a handle before anything was sent:
// no datagram is lost by that, and no call fails.
func TestReceiverThatMakesRoomIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := &post{
			status: func(netip.AddrPort) fabric.Status {
				if asked < maxMisses {
					return fabric.Flushed
				}
				return fabric.OK
			},
			resolve: func(context.Context, netip.AddrPort) error { asked++; return nil },
		}
		c := open(t, p, there)
		_, err := c.Write([]byte("a"))
		require.NoError(t, err)
		synctest.Wait()
		_, err = c.Write([]byte("b"))
		require.NoError(t, err)
		require.Equal(t, []string{"0:a", "1:b"}, p.sent)
		require.Zero(t, c.Stats().Unreachable)
		require.NoError(t, c.Close())
	})
}

// Missed counts exactly what is lost of what a sender sends here and to a group, once a later
// datagram has arrived. One that arrives twice changes nothing, nor does a sender that begins again
// with 0.
func TestStatsMissedIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := &post{}
	c := open(t, p, netip.AddrPort{})
	vias := []ud.Via{{}, {Queue: 1}, {Queue: 1, To: netip.MustParseAddr("239.1.2.3")}}
	sent := [3]uint32{0, 3 << 30, 100} // what went before the first that arrives was not for c
	var lost, unknown [3]uint64
	for i := range 3000 {
		way := r.IntN(len(vias))
		if r.IntN(100) == 0 {
			sent[way], unknown[way] = 0, 0
		}
		h := ud.Header{SourcePort: 2, Sequence: sent[way]}
		sent[way]++
		if r.IntN(5) == 0 && h.Sequence > 0 && i > 100 { // each way has had its first
			unknown[way]++
			continue
		}
		for range 1 + r.IntN(2) {
			p.arrivesBy(vias[way], there, h, "x")
			read(t, c)
		}
		lost[way], unknown[way] = lost[way]+unknown[way], 0
		require.Equal(t, lost[0]+lost[1]+lost[2], c.Stats().Missed)
	}
	for _, n := range lost {
		require.NotZero(t, n)
	}
}

func TestStatsCountRefusedDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &post{status: func(netip.AddrPort) fabric.Status { return fabric.RNRRetryExceeded }}
		c := open(t, p, netip.AddrPort{})
		write(t, c, "a", there)
		synctest.Wait()
		write(t, c, "b", there)
		require.EqualValues(t, 2, c.Stats().Refused)
		require.Zero(t, c.Stats().Sent)
		require.NoError(t, c.Close())
	})
}

// Close ends while other goroutines read, and from then on Stats has all that they have read.
func TestStatsAreFinalAfterClose(t *testing.T) {
	for range 100 {
		p := &post{}
		c, err := newPacketConn(p, options{})
		require.NoError(t, err)
		for i := range 50 {
			p.arrives(there, ud.Header{SourcePort: 2, Sequence: uint32(i)}, "x")
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				if _, err := c.Read(make([]byte, 10)); err != nil {
					return
				}
			}
		}()
		require.NoError(t, c.Close())
		total := c.Stats().Received
		<-ended
		require.Equal(t, c.Stats().Received, total)
	}
}

// If the device reports no port, that of the header counts; else the two have to be equal. A sender
// to a group does not know how long a datagram the cards of its members allow.
func TestForeignDatagramsAreDropped(t *testing.T) {
	p := &post{}
	c := open(t, p, there)
	p.arrives(there, ud.Header{SourcePort: 3}, "another port")
	p.arrives(here, ud.Header{SourcePort: 1}, "somebody else")
	p.arrives(there, ud.Header{}, "no port")
	p.inbox = append(p.inbox, ud.Datagram{From: there, Buffers: [][]byte{{}}})
	p.inbox = append(p.inbox, ud.Datagram{From: there, Buffers: [][]byte{{}}, Len: 1001})
	p.arrives(netip.AddrPortFrom(there.Addr(), 0), ud.Header{SourcePort: 2}, "no port told")
	require.Equal(t, "no port told", read(t, c))
	require.EqualValues(t, 5, c.Stats().Foreign)
	long := ud.Datagram{From: there, Via: ud.Via{To: netip.MustParseAddr("239.1.2.3")}, Buffers: [][]byte{{'l'}}, Len: 1001}
	ud.Header{SourcePort: 2}.Put(&long.Header)
	p.inbox = append(p.inbox, long)
	p.arrives(netip.MustParseAddrPort("[::ffff:10.0.0.2]:2"), ud.Header{SourcePort: 2, Sequence: 1}, "mapped")
	require.Equal(t, "l", read(t, c))
	require.Equal(t, "mapped", read(t, c))
	require.EqualValues(t, len("no port told")+len("mapped")+long.Len, c.Stats().BytesReceived)
}

// A batch from more senders than a PacketConn remembers still has the address of each.
func TestSourcesAreBounded(t *testing.T) {
	p := &post{}
	c := open(t, p, netip.AddrPort{})
	const senders = 2 * maxSources
	ms := make([]Message, senders)
	for i := range ms {
		p.arrives(netip.AddrPortFrom(there.Addr(), uint16(i+1)), ud.Header{SourcePort: uint16(i + 1), Sequence: 7}, "x")
		ms[i].Buffers = [][]byte{make([]byte, 1)}
	}
	n, err := c.ReadBatch(ms, 0)
	require.NoError(t, err)
	require.Equal(t, senders, n)
	for i := range ms {
		require.Equal(t, fmt.Sprint("10.0.0.2:", i+1), ms[i].Addr.String())
	}
	require.Len(t, c.reader.sources, maxSources)
	require.Zero(t, c.Stats().Missed)
}

// Whatever arrives is read whole, or dropped and counted.
func FuzzArrivals(f *testing.F) {
	f.Add([]byte{0x5d, 1, 0, 2, 0, 0, 0, 0}, uint16(2), 5)
	f.Add([]byte{0x5d, 1, 0, 2, 255, 255, 255, 255}, uint16(0), 1000)
	f.Add([]byte("too long"), uint16(1), 1001)
	p := &post{}
	c, err := newPacketConn(p, options{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, header []byte, port uint16, length int) {
		d := ud.Datagram{From: netip.AddrPortFrom(there.Addr(), port), Len: length}
		copy(d.Header[:], header)
		before := c.Stats()
		wanted := length >= 0 && c.filter(&d)
		after := c.Stats()
		if wanted {
			require.Equal(t, before.Received+1, after.Received)
			require.NotZero(t, d.From.Port())
			require.LessOrEqual(t, d.Len, c.MaxMessage())
			require.Contains(t, c.reader.sources, streamOf(&d))
		} else if length >= 0 {
			require.Equal(t, before.Foreign+1, after.Foreign)
		}
	})
}

// If there was no receiver when a try began, datagrams that were written later are tried
// again.
func TestReceiverIsLookedForAgainForLaterWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan error)
		p := &post{resolve: func(context.Context, netip.AddrPort) error { return <-asked }}
		c := open(t, p, netip.AddrPort{})
		write(t, c, "too early", there)
		synctest.Wait()
		write(t, c, "in time", there)
		asked <- &fabric.RejectError{Reason: fabric.RejectNoListener}
		asked <- nil
		synctest.Wait()
		require.Equal(t, []string{"0:in time"}, p.sent)
		require.EqualValues(t, 1, c.Stats().Unreachable)
		require.NoError(t, c.Close())
	})
}

func TestGroups(t *testing.T) {
	p := &post{}
	c := open(t, p, netip.AddrPort{})
	for _, wrong := range []net.Addr{nil, net.UDPAddrFromAddrPort(there), &net.UnixAddr{Name: "x"}, (*net.IPAddr)(nil), &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3), Port: 1<<16 + 1}} {
		require.ErrorIs(t, c.JoinGroup(nil, wrong), syscall.EINVAL, "%v", wrong)
		require.ErrorIs(t, c.LeaveGroup(nil, wrong), syscall.EINVAL, "%v", wrong)
	}
	require.NoError(t, c.JoinGroup(nil, &net.IPAddr{IP: net.IPv4(239, 1, 2, 3)}))
	require.NoError(t, c.JoinGroup(nil, &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3), Port: 4}))
	require.Equal(t, []string{"239.1.2.3:1 at invalid IP", "239.1.2.3:4 at invalid IP"}, p.joined)
	require.NoError(t, c.LeaveGroup(nil, &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3), Port: 4}))
	require.Equal(t, p.joined[1:], p.left)

	loopback, err := net.InterfaceByIndex(1)
	require.NoError(t, err)
	require.NoError(t, c.JoinGroup(nil, &net.UDPAddr{IP: net.ParseIP("ff02::1:2"), Port: 4, Zone: "1"}))
	require.Equal(t, "[ff02::1:2%"+loopback.Name+"]:4 at invalid IP", p.joined[2])

	p.join = syscall.EADDRINUSE
	err = c.JoinGroup(nil, &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3)})
	require.EqualError(t, err, "join rdma-udp 10.0.0.1:1->239.1.2.3:1: join: address already in use")
	err = c.JoinGroup(&net.Interface{Name: "none", Index: 1 << 30}, &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3)})
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)

	require.NoError(t, c.Close())
	require.ErrorIs(t, c.JoinGroup(nil, &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3)}), net.ErrClosed)
}

// A PacketConn that answers many senders whose addresses do not answer, because they are forged for
// example, goes on sending to the others.
func TestReceiversThatDoNotAnswerDelayNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &post{resolve: func(ctx context.Context, to netip.AddrPort) error {
			if to == there {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		c := open(t, p, netip.AddrPort{})
		write(t, c, "honest", there)
		synctest.Wait()
		silent := uint32(0)
		for range 1000 {
			for range 10 {
				silent++
				write(t, c, "answer", netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(silent >> 8), byte(silent)}), 9))
			}
			write(t, c, "honest", there)
			time.Sleep(time.Second / 10)
		}
		synctest.Wait()
		require.Len(t, p.sent, 1001)
		require.Empty(t, p.closed)
		require.LessOrEqual(t, len(c.sender.receivers), 1+maxPending)
		require.NoError(t, c.Close())
		require.EqualValues(t, silent, c.Stats().Dropped+c.Stats().Unreachable)
		require.Zero(t, c.sender.heldBytes)
	})
}

// A receiver takes the first of the datagrams that wait for it, and goes: its successor gets
// the rest.
func TestReceiverReplacedWhileItGetsHeldDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		resolved, got := 0, 0
		p := &post{
			resolve: func(context.Context, netip.AddrPort) error { resolved++; <-answer; return nil },
			status: func(netip.AddrPort) fabric.Status {
				if got++; resolved == 1 && got > 1 {
					return fabric.Flushed
				}
				return fabric.OK
			},
		}
		c := open(t, p, there)
		for _, text := range []string{"one", "two", "three"} {
			_, err := c.Write([]byte(text))
			require.NoError(t, err)
			synctest.Wait() // c looks for the receiver; the first datagram waits
		}
		close(answer)
		synctest.Wait()
		_, err := c.Write([]byte("four"))
		require.NoError(t, err)
		require.Equal(t, []string{"0:one", "0:two", "1:three", "2:four"}, p.sent)
		require.Zero(t, c.Stats().Unreachable)
		require.NoError(t, c.Close())
	})
}
