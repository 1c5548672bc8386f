package rconn

import (
	"net"

	"github.com/ringnet/ringnet/internal/crossing"
)

// WriteBuffers writes the buffers one behind the other, as one Write: no other Write comes
// between them, several small ones travel in one work request, and no further copy is made. It
// returns how many bytes it has accepted, and removes these from bufs, as
// [net.Buffers.WriteTo] does. It waits, fails and delivers as [Conn.Write] does. It may change
// the elements of bufs, but not the bytes, and keeps neither.
func (c *Conn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	crossing.Release()
	n, err := c.stream.WriteBuffers(bufs, c.writeDeadline)
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}
