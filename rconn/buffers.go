package rconn

import (
	"net"

	"github.com/ringnet/ringnet/internal/crossing"
)

// WriteBuffers writes the buffers one behind the other, as one Write: no other
// Write comes between them, and several small ones travel in one work request, with
// no copy besides the one that a Write would make. It takes from bufs what it has
// accepted, as [net.Buffers.WriteTo] does: if it fails, bufs is what it has not. It
// returns how many bytes it accepted, and waits, fails and delivers as
// [Conn.Write] does. The buffers are the caller's again when it returns; meanwhile it
// may change the elements of bufs, but not the bytes.
func (c *Conn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	crossing.Release()
	n, err := c.stream.WriteBuffers(bufs, c.writeDeadline)
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}
