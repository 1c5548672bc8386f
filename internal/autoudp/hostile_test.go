//go:build linux

package autoudp

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/internal/pconn"
	"github.com/ringnet/ringnet/internal/wire"
)

// other is a process that has a carrier, and says by it what it likes.
type other struct {
	t  *testing.T
	ep fabric.DatagramEndpoint
	to fabric.AddressHandle

	got []fabric.Datagram // since the last receive; only the header and Bytes are set
}

func newOther(t *testing.T, f fabric.Datagrams, at, to netip.AddrPort) *other {
	t.Helper()
	o := &other{t: t}
	var err error
	o.ep, err = f.ListenPacket(at, fabric.DatagramOptions{RecvQueue: 64, Notify: func() {}, Lost: func(error) {},
		Filter: func(d *fabric.Datagram) bool {
			o.got = append(o.got, fabric.Datagram{Header: d.Header, Bytes: append([]byte(nil), d.Bytes...)})
			return false
		}})
	require.NoError(t, err)
	if to.IsValid() {
		o.to, err = o.ep.Resolve(t.Context(), to)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		if o.to != nil {
			o.to.Close()
		}
		require.NoError(t, o.ep.Close())
	})
	return o
}

func (o *other) receive() []fabric.Datagram {
	o.got = nil
	o.ep.Receive(make([]fabric.Datagram, 10))
	return o.got
}

func (o *other) send(header func(*[fabric.HeaderSize]byte), data []byte) {
	d := []fabric.Datagram{{To: o.to, Buffers: [][]byte{data}}}
	header(&d[0].Header)
	o.ep.Send(d)
}

func (o *other) ask(n nonce, port uint16, from netip.AddrPort) {
	o.send(wire.ProofHeader{Kind: wire.ProofQuestion, SourcePort: port}.Put, wire.ProofRequest{Nonce: n, From: from}.Append(nil))
}

// readAll reads what comes to a Conn until nothing has come for a while.
func readAll(t *testing.T, c net.PacketConn, quiet time.Duration) (all []string) {
	t.Helper()
	p := make([]byte, 1<<16)
	for {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(quiet)))
		n, _, err := c.ReadFrom(p)
		if err, ok := err.(net.Error); ok && err.Timeout() {
			return all
		}
		require.NoError(t, err)
		all = append(all, string(p[:n]))
	}
}

// listenUDP listens with UDP alone.
func listenOnUDP(t *testing.T, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The port of one that has asked belongs to another program, which has only UDP, before it is answered.
func TestAQuestionEndsWithItsAsker(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		k := &keeping{Fabric: f}
		b := listenAt(t, k, netip.AddrPortFrom(host, 0))
		udp := listenOnUDP(t, netip.AddrPortFrom(host, 0))
		o := newOther(t, f.Carriers[0], netip.AddrPortFrom(host, 0), addrOf(b))
		e := k.e.(*endpoint)
		hang.Unless(t, func() bool {
			o.ask(newNonce(), 1, addrOf(udp))
			readAll(t, b, 10*time.Millisecond)
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, q := range e.questions {
				q.asked = q.asked.Add(-2 * proofWait)
			}
			return len(e.questions) > 0
		})
		_, err := udp.WriteToUDPAddrPort([]byte("hello"), addrOf(b))
		require.NoError(t, err)
		require.Equal(t, []string{"hello"}, readAll(t, b, time.Second))
		require.Empty(t, readAll(t, udp, 100*time.Millisecond), "B's program has written nothing")
	})
}

// B listens at all addresses. A sends to one that is not that from which B's UDP answers, as a host's name
// has in Debian's /etc/hosts.
func TestAnswersFromAnotherAddressAreNotThePrograms(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		if !host.IsLoopback() {
			t.Skip("another address of the device is not known here")
		}
		b := listenAt(t, f, netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
		a := listenAt(t, f, netip.AddrPortFrom(host, 0))
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.1.1"), addrOf(b).Port())
		hang.Unless(t, func() bool {
			_, err := a.WriteToUDPAddrPort([]byte("hello"), to)
			if err != nil {
				t.Error(err)
			}
			readAll(t, b, 10*time.Millisecond)
			if got := readAll(t, a, 10*time.Millisecond); len(got) > 0 {
				t.Errorf("B's program has written nothing, A's reads %q", got)
			}
			s := a.Stats()
			return s.Sent > s.ByUDP
		})
	})
}

// Whatever comes by the carrier with the header of a proof, nothing ends, nothing grows, and no other is
// kept out.
func TestOneThatAsksWithoutEndKeepsOutNoOther(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		k := &keeping{Fabric: f}
		a, b := listenAt(t, f, netip.AddrPortFrom(host, 0)), listenAt(t, k, netip.AddrPortFrom(host, 0))
		o := newOther(t, f.Carriers[0], netip.AddrPortFrom(host, 0), addrOf(b))
		r := rand.New(rand.NewPCG(1, 2))
		carried := func() bool { s := a.Stats(); return s.Sent > s.ByUDP }
		for i, end := 0, time.Now().Add(hang.After); i < 2000 || !carried(); i++ {
			o.ask(newNonce(), uint16(1+i), netip.AddrPortFrom(host, uint16(1+r.IntN(1000))))
			data := make([]byte, r.IntN(64))
			for j := range data {
				data[j] = byte(r.Uint32())
			}
			o.send(wire.ProofHeader{Kind: wire.ProofKind(r.IntN(4)), SourcePort: uint16(1 + r.IntN(1<<16-1))}.Put, data)
			if i%8 == 0 { // or the receive queue has no room for a's
				exchange(t, a, b, 10)
				require.True(t, time.Now().Before(end), "the carrier is not taken")
			}
		}
		o.ask(newNonce(), 1, netip.AddrPortFrom(host.Next(), 9))
		exchange(t, a, b, 10)
		e := k.e.(*endpoint)
		e.mu.Lock()
		defer e.mu.Unlock()
		require.LessOrEqual(t, len(e.questions), 2, "one of each")
		for _, q := range e.questions {
			require.Equal(t, host, q.from.Addr(), "o is of this host")
		}
		require.Len(t, e.sources, 1, "a's")
	})
}

func TestBytesReceivedAreThoseThatCameByUDP(t *testing.T) {
	a, b := listenAt(t, &Fabric{}, netip.AddrPortFrom(loopback, 0)), listenAt(t, &Fabric{}, netip.AddrPortFrom(loopback, 0))
	_, err := a.WriteTo(make([]byte, 1000), b.LocalAddr())
	require.NoError(t, err)
	_, _, err = b.ReadFrom(make([]byte, 10))
	require.NoError(t, err)
	require.EqualValues(t, 1000, b.Stats().BytesReceived)
}

var loopback = netip.MustParseAddr("127.0.0.1")

// What has come while its sender was known is read later; what comes when it is not known any more is not.
func TestWhatLiesUnreadOutlivesItsProof(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		k := &keeping{Fabric: f}
		a, b := listenAt(t, f, netip.AddrPortFrom(host, 0)), listenAt(t, k, netip.AddrPortFrom(host, 0))
		requireCarried(t, a, b)
		readAll(t, b, 50*time.Millisecond)
		e := k.e.(*endpoint)
		for _, unread := range []time.Duration{2 * proofLasts, 0} {
			byUDP := a.Stats().ByUDP
			_, err := a.WriteToUDPAddrPort([]byte("wait"), addrOf(b))
			require.NoError(t, err)
			require.Equal(t, byUDP, a.Stats().ByUDP)
			e.mu.Lock()
			for _, known := range e.sources {
				known.proven = time.Now().Add(-2 * proofLasts)
			}
			e.emptied = time.Now().Add(-unread)
			e.mu.Unlock()
			want := []string{"wait"}
			if unread == 0 {
				want = nil
			}
			require.Equal(t, want, readAll(t, b, 100*time.Millisecond))
		}
	})
}

// The error that a datagram has found no receiver is known when the next is sent, which arrives.
func TestAnErrorIsNotOfTheNextDatagram(t *testing.T) {
	gone := listenOnUDP(t, netip.AddrPortFrom(loopback, 0))
	to := addrOf(gone)
	require.NoError(t, gone.Close())
	c, err := pconn.Listen(&Fabric{}, pconn.Options{Network: "auto-udp", Local: netip.AddrPortFrom(loopback, 0), Remote: to})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("1"))
	require.NoError(t, err)
	hang.Unless(t, func() bool { return c.Stats().Sent == 1 })
	back := listenOnUDP(t, to)
	_, err = c.Write([]byte("2"))
	require.NoError(t, err)
	require.Equal(t, []string{"2"}, readAll(t, back, time.Second))
}

// M has taken B's port of shm before B came, so B has only RDMA there, and passes on all of A's proof.
func TestAProofIsNotPassedOnByAnotherCarrier(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		if f.Carriers[0].Name == "shm-udp" {
			t.Skip("takes two carriers")
		}
		shm, rdma := shmCarrier(t), f.Carriers[0]
		both := &Fabric{[]Carrier{shm, rdma}}
		free := listenOnUDP(t, netip.AddrPortFrom(host, 0))
		at := addrOf(free)
		require.NoError(t, free.Close())
		m := newOther(t, shm, at, netip.AddrPort{})
		b, a := listenAt(t, both, at), listenAt(t, both, netip.AddrPortFrom(host, 0))
		out := newOther(t, rdma, netip.AddrPortFrom(host, 0), at)
		for range 30 {
			_, err := a.WriteToUDPAddrPort([]byte("secret"), at)
			require.NoError(t, err)
			for range 5 {
				for _, d := range m.receive() {
					ph, ok := wire.DecodeProofHeader(d.Header)
					require.True(t, ok, "M has read what A sent to B")
					ph.SourcePort = out.ep.LocalAddr().Port()
					out.send(ph.Put, d.Bytes)
				}
				readAll(t, b, 10*time.Millisecond)
				readAll(t, a, time.Millisecond)
			}
		}
	})
}

// Another process of A's host, which cannot send UDP from A's port, says that it has that port: when it sends,
// and when it proves an address of its own, which it has not before it has B's token. However often it does,
// nothing is forgotten for it.
func TestAnotherProcessOfTheHostIsNotTheSender(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		k := &keeping{Fabric: f}
		a, b := listenAt(t, f, netip.AddrPortFrom(host, 0)), listenAt(t, k, netip.AddrPortFrom(host, 0))
		requireCarried(t, a, b)
		readAll(t, b, 50*time.Millisecond)
		c := newOther(t, f.Carriers[0], netip.AddrPortFrom(host, 0), addrOf(b))
		c.send(wire.DatagramHeader{SourcePort: addrOf(a).Port(), Sequence: 1 << 20}.Put, []byte("forged"))
		require.Empty(t, readAll(t, b, 100*time.Millisecond))

		udp := listenOnUDP(t, netip.AddrPortFrom(host, 0))
		for i, port := range []uint16{addrOf(a).Port(), 1000, 1001} {
			n := newNonce()
			confirm := func(token []byte) {
				c.send(wire.ProofHeader{Kind: wire.ProofConfirmed, SourcePort: port}.Put, append(n[:], token...))
			}
			c.ask(n, port, addrOf(udp))
			readAll(t, b, 50*time.Millisecond)
			_, err := udp.WriteToUDPAddrPort([]byte("c"), addrOf(b))
			require.NoError(t, err)
			readAll(t, b, 50*time.Millisecond)
			if i == 0 {
				for _, token := range []nonce{{}, newNonce(), n} {
					confirm(token[:])
				}
				c.send(wire.DatagramHeader{SourcePort: addrOf(udp).Port()}.Put, []byte("not proven"))
				require.Empty(t, readAll(t, b, 100*time.Millisecond))
			}
			answer := readAll(t, udp, 100*time.Millisecond)
			require.Len(t, answer, 1)
			confirm([]byte(answer[0][2*len(n):]))
			readAll(t, b, 50*time.Millisecond)
			require.Len(t, readAll(t, udp, 100*time.Millisecond), 1, "that B has accepted it")
		}
		e := k.e.(*endpoint)
		e.mu.Lock()
		require.Len(t, e.sources, 2, "a's and C's")
		e.mu.Unlock()

		byUDP := a.Stats().ByUDP
		_, err := a.WriteToUDPAddrPort([]byte("from a"), addrOf(b))
		require.NoError(t, err)
		require.Equal(t, byUDP, a.Stats().ByUDP)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(hang.After)))
		_, from, err := b.ReadFrom(make([]byte, 100))
		require.NoError(t, err)
		require.Equal(t, a.LocalAddr().String(), from.String(), "C is %v", addrOf(udp))
	})
}
