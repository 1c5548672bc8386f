package proxy

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// bufferLen is how many bytes are moved at a time.
const bufferLen = 256 << 10

type buffer [bufferLen]byte

// buffers are those that are not in use. All have one size: pools of buffers of many
// sizes, as libraries have them, cost more.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

// carrier moves the bytes of an end.
type carrier interface {
	source() source
	sink(taken *atomic.Uint64) sink

	// lostBy is why the connection to the peer has ended, other than by the ends of its streams, or nil.
	lostBy() error

	// taken changes when the peer takes bytes that were written.
	taken() uint64

	// holdsDescriptors reports whether file descriptors may be queued at the end, which is about to be closed.
	holdsDescriptors() bool
}

// source waits until there is something to read, takes a buffer, and reads into it. The
// caller puts the buffer back; it is nil if nothing was read. So the connections that
// wait, which are most of 10,000, have no buffers.
type source func() (*buffer, int, error)

// sink writes all of p, and counts the bytes that the end takes, or returns an error.
type sink func(p []byte) error

// stream is a connection that is not the kernel's socket.
type stream struct {
	endpoint.Conn
	writing *sync.Mutex // that of the end
}

func (s stream) source() source {
	if w, ok := endpoint.Carrier(s.Conn).(interface{ AwaitRead() error }); ok {
		return func() (*buffer, int, error) {
			if err := w.AwaitRead(); err != nil {
				return nil, 0, err
			}
			return readBuffer(s.Conn)
		}
	}
	return func() (*buffer, int, error) { return readBuffer(s.Conn) }
}

func (s stream) sink(taken *atomic.Uint64) sink {
	return func(p []byte) error {
		n, err := s.Write(p)
		taken.Add(uint64(n))
		return err
	}
}

func (s stream) lostBy() error {
	if !s.writing.TryLock() {
		return nil // the half that writes notices it
	}
	defer s.writing.Unlock()
	if _, err := s.Write(nil); !errors.Is(err, syscall.EPIPE) { // which follows the end of the stream
		return err
	}
	return nil
}

func (s stream) taken() uint64 {
	if c, ok := s.Conn.(interface{ Stats() ringnet.Stats }); ok {
		return c.Stats().BytesWritten
	}
	return 0
}

func (s stream) holdsDescriptors() bool { return false }

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
