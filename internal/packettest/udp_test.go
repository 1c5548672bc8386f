package packettest

import (
	"net"
	"testing"

	"golang.org/x/net/ipv4"
)

// The suite is fair: UDP passes it.
func TestUDP(t *testing.T) {
	Test(t, Network{
		Listen: func(address string) (net.PacketConn, error) { return net.ListenPacket("udp", address) },
		Dial:   func(address string) (net.Conn, error) { return net.Dial("udp", address) },
		Batch:  func(c net.PacketConn) Batcher { return ipv4.NewPacketConn(c) },
		Host:   "127.0.0.1",
		Most:   65507,
		Burst:  64,
	})
}
