package endpoint

import (
	"context"
	"net"

	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet"
)

// Packets are the networks of datagrams, by the network of connections that goes the
// same way.
var Packets = map[string]string{"shm": "shm-udp", "rdma": "rdma-udp", "tcp": "udp"}

// PacketConn is what the sockets for datagrams of all networks can do.
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

// readBuffer is how many bytes of datagrams wait to be read, as of ringnet's sockets,
// if the system lets them.
const readBuffer = 1 << 20

func newUDP(c net.PacketConn) *udp {
	conn := c.(*net.UDPConn)
	_ = conn.SetReadBuffer(readBuffer)
	return &udp{UDPConn: conn, batches: ipv4.NewPacketConn(conn)}
}

// ReadBatch is called by one goroutine at a time.
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

// WriteBatch is called by one goroutine at a time. It may send fewer than there are
// without an error.
func (u *udp) WriteBatch(ms []ringnet.Message, flags int) (int, error) {
	u.write = u.write[:0]
	for i := range ms {
		u.write = append(u.write, ipv4.Message(ms[i]))
	}
	return u.batches.WriteBatch(u.write, flags)
}

// Stats returns none: UDP tells a socket nothing.
func (u *udp) Stats() (none ringnet.PacketStats) { return none }
