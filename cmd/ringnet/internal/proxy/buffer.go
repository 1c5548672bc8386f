package proxy

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// bufferLen is how many bytes are moved at a time.
const bufferLen = 256 << 10

type buffer [bufferLen]byte

// buffers are those that are not in use. All have one size: pools of buffers of many
// sizes, as libraries have them, cost more.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

// sink writes all of p, or returns an error.
type sink func(p []byte) error

// newSink returns a sink that counts the bytes that e takes.
func (e *end) newSink(taken *atomic.Uint64) sink {
	if e.socket != nil {
		return e.socket.sink(taken)
	}
	return func(p []byte) error {
		n, err := e.Write(p)
		taken.Add(uint64(n))
		return err
	}
}

// source waits until there is something to read, takes a buffer, and reads into it. The
// caller puts the buffer back; it is nil if nothing was read. So the connections that
// wait, which are most of 10,000, have no buffers.
type source func() (*buffer, int, error)

func (e *end) newSource() source {
	if w, ok := endpoint.Carrier(e.Conn).(interface{ AwaitRead() error }); ok {
		return func() (*buffer, int, error) {
			if err := w.AwaitRead(); err != nil {
				return nil, 0, err
			}
			return readBuffer(e)
		}
	}
	if e.socket != nil {
		return e.socket.source()
	}
	return func() (*buffer, int, error) { return readBuffer(e) }
}

// readBuffer takes a buffer and reads into it.
func readBuffer(r io.Reader) (*buffer, int, error) {
	b := buffers.Get().(*buffer)
	n, err := r.Read(b[:])
	if n == 0 {
		buffers.Put(b)
		b = nil
	}
	return b, n, err
}
