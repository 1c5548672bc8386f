package endpoint

import (
	"context"
	"net"

	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet"
)

// Packets are the networks of datagrams, by the network of connections that uses the
// same device.
var Packets = map[string]string{"shm": "shm-udp", "rdma": "rdma-udp", "tcp": "udp"}

// PacketConn has the methods that sockets for datagrams of all networks have.
type PacketConn interface {
	net.Conn
	ReadBatch(ms []ringnet.Message, flags int) (int, error)
	WriteBatch(ms []ringnet.Message, flags int) (int, error)
	Stats() ringnet.PacketStats
}

// ListenPacket returns a socket at an address of a network of datagrams.
func ListenPacket(ctx context.Context, network, address string) (PacketConn, error) {
	if network != "udp" {
		c, err := new(ringnet.ListenConfig).ListenPacket(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return c.(PacketConn), nil
	}
	c, err := new(net.ListenConfig).ListenPacket(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return newUDP(c), nil
}

// DialPacket returns a socket that sends to an address, and receives from there.
func DialPacket(ctx context.Context, network, address string) (PacketConn, error) {
	if network != "udp" {
		c, err := new(ringnet.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return c.(PacketConn), nil
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return newUDP(c.(*net.UDPConn)), nil
}

// udp is package net's socket, with batches as golang.org/x/net has them.
type udp struct {
	*net.UDPConn
	batches     *ipv4.PacketConn
	read, write []ipv4.Message
}

// readBuffer is how many bytes of datagrams a UDP socket holds until they are read, if
// the system allows it: as many as ringnet's sockets do.
const readBuffer = 1 << 20

func newUDP(c net.PacketConn) *udp {
	conn := c.(*net.UDPConn)
	_ = conn.SetReadBuffer(readBuffer)
	return &udp{UDPConn: conn, batches: ipv4.NewPacketConn(conn)}
}

// ReadBatch must not be called by several goroutines at once.
func (u *udp) ReadBatch(ms []ringnet.Message, flags int) (int, error) {
	u.read = u.read[:0]
	for i := range ms {
		u.read = append(u.read, ipv4.Message(ms[i]))
	}
	n, err := u.batches.ReadBatch(u.read, flags)
	for i := range max(n, 0) {
		ms[i] = ringnet.Message(u.read[i])
	}
	return n, err
}

// WriteBatch must not be called by several goroutines at once. It may send fewer
// datagrams than ms has and return no error.
func (u *udp) WriteBatch(ms []ringnet.Message, flags int) (int, error) {
	u.write = u.write[:0]
	for i := range ms {
		u.write = append(u.write, ipv4.Message(ms[i]))
	}
	return u.batches.WriteBatch(u.write, flags)
}

// Stats returns zeros: UDP counts nothing for a socket.
func (u *udp) Stats() (none ringnet.PacketStats) { return none }
