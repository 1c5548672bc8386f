package proxy

import (
	"io"
	"sync"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// bufferLen is how many bytes are moved at a time.
const bufferLen = 256 << 10

type buffer [bufferLen]byte

// buffers has those that move nothing. (A pool of buffers of one size; those of
// many sizes that libraries have would cost more.)
var buffers = sync.Pool{New: func() any { return new(buffer) }}

// sink writes a whole buffer.
type sink func(p []byte) (int, error)

func (e *end) newSink() sink {
	if e.socket != nil {
		return e.socket.sink()
	}
	return e.Write
}

// source reads what comes next into a buffer, which the caller puts back, unless
// there is nothing but an error. It takes the buffer only when there is something
// to read, for most of 10,000 connections wait.
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

func readBuffer(r io.Reader) (*buffer, int, error) {
	b := buffers.Get().(*buffer)
	n, err := r.Read(b[:])
	if n == 0 {
		buffers.Put(b)
		b = nil
	}
	return b, n, err
}
