package packettest

import (
	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet/internal/pconn"
)

// Batches returns the methods for batches of a Conn with the types of golang.org/x/net.
func Batches(c *pconn.Conn) Batcher { return batches{c} }

type batches struct{ c *pconn.Conn }

func (b batches) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	return batch(b.c.ReadBatch, ms, flags)
}

func (b batches) WriteBatch(ms []ipv4.Message, flags int) (int, error) {
	return batch(b.c.WriteBatch, ms, flags)
}

// batch calls a method of Conn with messages of the type that it has.
func batch(method func([]pconn.Message, int) (int, error), ms []ipv4.Message, flags int) (int, error) {
	var own []pconn.Message
	for _, m := range ms {
		own = append(own, pconn.Message(m))
	}
	n, err := method(own, flags)
	for i := range own[:n] {
		ms[i] = ipv4.Message(own[i])
	}
	return n, err
}
