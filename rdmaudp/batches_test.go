package rdmaudp_test

import (
	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet/rdmaudp"
	"github.com/ringnet/ringnet/rdmaudp/internal/testing/packettest"
)

// batchesOf returns the methods for batches of a PacketConn with the types of golang.org/x/net.
func batchesOf(c *rdmaudp.PacketConn) packettest.Batcher { return batches{c} }

type batches struct{ c *rdmaudp.PacketConn }

func (b batches) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	return batch(b.c.ReadBatch, ms, flags)
}

func (b batches) WriteBatch(ms []ipv4.Message, flags int) (int, error) {
	return batch(b.c.WriteBatch, ms, flags)
}

// batch calls a method of PacketConn with messages of the type that it has.
func batch(method func([]rdmaudp.Message, int) (int, error), ms []ipv4.Message, flags int) (int, error) {
	var own []rdmaudp.Message
	for _, m := range ms {
		own = append(own, rdmaudp.Message(m))
	}
	n, err := method(own, flags)
	for i := range own[:n] {
		ms[i] = ipv4.Message(own[i])
	}
	return n, err
}
