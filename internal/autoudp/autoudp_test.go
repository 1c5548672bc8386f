//go:build linux

package autoudp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/internal/pconn"
	"github.com/ringnet/ringnet/internal/wire"
)

// overEachCarrier runs a test with shared memory, and with RDMA where there is a device, at an address.
func overEachCarrier(t *testing.T, test func(t *testing.T, f *Fabric, host netip.Addr)) {
	t.Run("shm", func(t *testing.T) { test(t, &Fabric{[]Carrier{shmCarrier(t)}}, netip.MustParseAddr("127.0.0.1")) })
	t.Run("rdma", func(t *testing.T) {
		host := os.Getenv("SOFTROCE_ADDR")
		if host == "" {
			t.Skip("SOFTROCE_ADDR is not set; bin/softroce sets it where there is an RDMA device")
		}
		f, err := verbs.Fabric()
		require.NoError(t, err)
		test(t, &Fabric{[]Carrier{{"rdma-udp", f.(fabric.Datagrams)}}}, netip.MustParseAddr(host))
	})
}

func shmCarrier(t *testing.T) Carrier {
	t.Helper()
	f, err := shm.Fabric()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return Carrier{"shm-udp", f.(fabric.Datagrams)}
}

func listenAt(t *testing.T, f fabric.Datagrams, at netip.AddrPort) *pconn.Conn {
	t.Helper()
	c, err := pconn.Listen(f, pconn.Options{Network: "auto-udp", Local: at})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func addrOf(c net.PacketConn) netip.AddrPort {
	return c.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
}

// numbered writes datagrams that no other test writes, and that are all different.
var numbered atomic.Uint64

// exchange sends a datagram from a to b and back, again while one is lost.
func exchange(t *testing.T, a, b net.PacketConn, size int) {
	t.Helper()
	want := append(fmt.Appendf(nil, "%d ", numbered.Add(1)), make([]byte, size)...)
	for _, way := range [][2]net.PacketConn{{a, b}, {b, a}} {
		for end := time.Now().Add(hang.After); !arrives(t, way[0], way[1], want); {
			require.True(t, time.Now().Before(end), "nothing arrives")
		}
	}
}

// arrives reports whether a datagram arrives soon. It drops others, which have been sent twice.
func arrives(t *testing.T, from, to net.PacketConn, want []byte) bool {
	t.Helper()
	_, err := from.WriteTo(want, net.UDPAddrFromAddrPort(addrOf(to)))
	require.NoError(t, err)
	p := make([]byte, 1<<16)
	require.NoError(t, to.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	for {
		n, sender, err := to.ReadFrom(p)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		require.NoError(t, err)
		require.Equal(t, addrOf(from).String(), sender.String())
		if string(p[:n]) == string(want) {
			return true
		}
	}
}

// requireCarried exchanges datagrams until both ends send by the carrier.
func requireCarried(t *testing.T, a, b *pconn.Conn) {
	t.Helper()
	for _, c := range []*pconn.Conn{a, b} {
		before := c.Stats()
		for end := time.Now().Add(hang.After); ; {
			if s := c.Stats(); s.Sent-s.ByUDP > before.Sent-before.ByUDP {
				break
			}
			exchange(t, a, b, 10)
			require.True(t, time.Now().Before(end), "the carrier is not taken")
		}
	}
}

func TestDatagramsTakeTheCarrier(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		a, b := listenAt(t, f, netip.AddrPortFrom(host, 0)), listenAt(t, f, netip.AddrPortFrom(host, 0))
		requireCarried(t, a, b)
		for range 100 {
			exchange(t, a, b, rand.IntN(4000))
		}
		byUDP := a.Stats().ByUDP
		exchange(t, a, b, 10_000)
		require.Greater(t, a.Stats().ByUDP, byUDP, "what is too long for the carrier")
		require.Zero(t, a.Stats().Foreign+b.Stats().Foreign+a.Stats().Missed+b.Stats().Missed)
	})
}

// Whoever listens there next gets what is sent, whether it has the carrier or not.
func TestUDPIsTakenWhenTheCarrierEnds(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		a, b := listenAt(t, f, netip.AddrPortFrom(host, 0)), listenAt(t, f, netip.AddrPortFrom(host, 0))
		requireCarried(t, a, b)
		at := addrOf(b)
		require.NoError(t, b.Close())
		plain, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		require.NoError(t, err)
		exchange(t, a, plain, 100)
		require.NoError(t, plain.Close())
		requireCarried(t, a, listenAt(t, f, at))
	})
}

// A program that has the port of UDP gets all datagrams and nothing else, whoever has that of the carrier, and
// whatever that one says by UDP to who asks it.
func TestTheReceiverIsThatOfUDP(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, f *Fabric, host netip.Addr) {
		udp, words := listenOnUDP(t, netip.AddrPortFrom(host, 0)), listenOnUDP(t, netip.AddrPortFrom(host, 0))
		liar := newOther(t, f.Carriers[0], addrOf(udp), netip.AddrPort{})
		a := listenAt(t, f, netip.AddrPortFrom(host, 0))
		c := &carrier{name: f.Carriers[0].Name}
		for asked := 0; asked < proofTries; {
			exchange(t, a, udp, 10) // reads all that comes to udp
			for _, d := range liar.receive() {
				h, _ := wire.DecodeProofHeader(d.Header)
				require.Equal(t, wire.ProofQuestion, h.Kind)
				r, ok := wire.DecodeProofRequest(d.Bytes)
				require.True(t, ok)
				n, sum, token := nonce(r.Nonce), newNonce(), newNonce()
				for _, lie := range [][]byte{
					n.says("accepted", c),
					slices.Concat(n.says("answered", c)[:wire.ProofNonceSize], sum[:], token[:]), n.says("accepted", c),
				} {
					_, err := words.WriteToUDPAddrPort(lie, addrOf(a))
					require.NoError(t, err)
				}
				asked++
			}
		}
		exchange(t, a, udp, 10)
		require.Equal(t, a.Stats().Sent, a.Stats().ByUDP)
	})
}

// keeping is a Fabric that keeps the endpoint that it makes.
type keeping struct {
	*Fabric
	e fabric.DatagramEndpoint
}

func (f *keeping) ListenPacket(local netip.AddrPort, o fabric.DatagramOptions) (_ fabric.DatagramEndpoint, err error) {
	f.e, err = f.Fabric.ListenPacket(local, o)
	return f.e, err
}
