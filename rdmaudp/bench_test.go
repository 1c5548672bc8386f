package rdmaudp_test

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet/rdmaudp"
)

// packets is what the benchmarks use of a rdmaudp.PacketConn and a net.UDPConn.
type packets interface {
	net.PacketConn
	ReadFromUDPAddrPort(p []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(p []byte, to netip.AddrPort) (int, error)
}

func listenPackets(tb testing.TB, network string) packets {
	tb.Helper()
	listen := net.ListenPacket
	if network != "udp" {
		listen = func(network, address string) (net.PacketConn, error) { return orNil(rdmaudp.Listen(network, address)) }
	}
	host := "127.0.0.1"
	if device := os.Getenv("SOFTROCE_ADDR"); device != "" {
		host = device
	}
	c, err := listen(network, net.JoinHostPort(host, "0"))
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c.(packets)
}

// benchmarked are the networks to compare.
func benchmarked() []string {
	if os.Getenv("SOFTROCE_ADDR") != "" {
		return []string{"rdma-udp", "udp"}
	}
	return []string{"udp"}
}

func addrPortOf(c net.PacketConn) netip.AddrPort {
	return c.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
}

// listenMembers returns new members of a group.
func listenMembers(b *testing.B, network string, ifi *net.Interface, group *net.UDPAddr, n int) (members []net.PacketConn) {
	b.Helper()
	for range n {
		var c net.PacketConn
		var err error
		if network == "udp" {
			c, err = net.ListenMulticastUDP("udp4", ifi, group)
		} else {
			c, err = rdmaudp.ListenMulticast(network, ifi, group.String())
		}
		require.NoError(b, err)
		b.Cleanup(func() { c.Close() })
		members = append(members, c)
	}
	return members
}

// Datagrams of 1 KiB to a group of 4 in this process, as many as arrive: those of all
// members are counted.
func BenchmarkPacketGroup(b *testing.B) {
	const size = 4
	group := &net.UDPAddr{IP: net.IPv4(239, 255, 12, 4), Port: 12345}
	for _, network := range benchmarked() {
		b.Run(network, func(b *testing.B) {
			from := listenPackets(b, network)
			ifi := interfaceOf(b, addrPortOf(from).Addr().String())
			if network == "udp" {
				require.NoError(b, ipv4.NewPacketConn(from).SetMulticastInterface(ifi))
			}
			members := listenMembers(b, network, ifi, group, size)
			done := make(chan struct{})
			go func() {
				defer close(done)
				p, at := make([]byte, 1024), group.AddrPort()
				for {
					if _, err := from.WriteToUDPAddrPort(p, at); err != nil {
						return
					}
					runtime.Gosched()
				}
			}()
			b.SetBytes(1024)
			for _, m := range members {
				_, _, err := m.ReadFrom(make([]byte, 1024)) // from now on the sender knows this member
				require.NoError(b, err)
			}
			b.ResetTimer()
			var reading sync.WaitGroup
			for i, m := range members {
				reading.Go(func() {
					p := make([]byte, 1024)
					for range (b.N + i) / size {
						if _, _, err := m.ReadFrom(p); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			reading.Wait()
			from.Close()
			<-done
		})
	}
}

func TestPacketsAllocateNothing(t *testing.T) {
	if os.Getenv("SOFTROCE_ADDR") == "" {
		t.Skip("no RDMA device: SOFTROCE_ADDR is not set; bin/softroce sets it")
	}
	a, b := listenPackets(t, "rdma-udp"), listenPackets(t, "rdma-udp")
	to := addrPortOf(b)
	p := make([]byte, 1000)
	room := []rdmaudp.Message{{Buffers: [][]byte{p}}, {Buffers: [][]byte{p}}}
	ms := []rdmaudp.Message{{Buffers: [][]byte{p}, Addr: b.LocalAddr()}, {Buffers: [][]byte{p[:500], p[500:]}, Addr: b.LocalAddr()}}
	require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_, err := a.WriteToUDPAddrPort(p, to)
		require.NoError(t, err)
		_, _, err = b.ReadFromUDPAddrPort(p)
		require.NoError(t, err)
	}))
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_, err := a.WriteTo(p, b.LocalAddr())
		require.NoError(t, err)
		_, _, err = b.ReadFrom(p)
		require.NoError(t, err)
	}))
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		n, err := a.(*rdmaudp.PacketConn).WriteBatch(ms, 0)
		require.NoError(t, err)
		for n > 0 {
			read, err := b.(*rdmaudp.PacketConn).ReadBatch(room[:n], 0)
			require.NoError(t, err)
			n -= read
		}
	}))
}
