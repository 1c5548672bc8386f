package packettest

import (
	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet/pconn"
)

// Batches returns the methods for batches of a Conn with the types of golang.org/x/net.
func Batches(c *pconn.Conn) Batcher { return batches{c} }

type batches struct{ c *pconn.Conn }

func (b batches) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	own := ownMessages(ms)
	n, err := b.c.ReadBatch(own, flags)
	for i := range own[:n] {
		ms[i] = ipv4.Message(own[i])
	}
	return n, err
}

func (b batches) WriteBatch(ms []ipv4.Message, flags int) (int, error) {
	own := ownMessages(ms)
	n, err := b.c.WriteBatch(own, flags)
	for i := range own[:n] {
		ms[i] = ipv4.Message(own[i])
	}
	return n, err
}

func ownMessages(ms []ipv4.Message) (own []pconn.Message) {
	for _, m := range ms {
		own = append(own, pconn.Message(m))
	}
	return own
}
