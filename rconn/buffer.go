package rconn

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/ringnet/ringnet/internal/crossing"
	"github.com/ringnet/ringnet/internal/link"
)

// ErrHandedOver is the error of methods of a [Buffer] that the device is still sending from.
var ErrHandedOver = errors.New("the device is still sending from the buffer")

// errOtherConn is the error of writing a buffer to a connection that has not made it.
var errOtherConn = errors.New("the buffer belongs to another connection")

// Buffer is registered memory from which the device sends without a copy. Its methods may be
// called by several goroutines at once. The comment of ringnet.Buffer tells how to use it.
type Buffer struct {
	conn   *Conn
	memory *link.Buffer

	mu         sync.Mutex // held by the one call under way; guards what follows
	start, end int        // of the bytes to be written
	closed     bool
	dropped    runtime.Cleanup
}

// NewBuffer makes a Buffer for writing to c. size is in bytes, 1 at least, and is rounded up to
// whole pages. The caller closes the Buffer. The error is a *net.OpError, with ENOMEM when a
// memory limit of the process is reached. While the path to the peer is lost NewBuffer waits, as
// a Write does (Config.ResumeTimeout); it fails as a Write does if nothing can be written any more.
func (c *Conn) NewBuffer(size int) (*Buffer, error) {
	if size <= 0 {
		return nil, c.opError("buffer", fmt.Errorf("the buffer's size is %d: want 1 or more", size))
	}
	memory, err := c.stream.NewBuffer(size)
	if err != nil {
		return nil, c.opError("buffer", err)
	}
	b := &Buffer{conn: c, memory: memory}
	b.dropped = runtime.AddCleanup(b, func(memory *link.Buffer) { go memory.Close() }, memory)
	return b, nil
}

// fill has f fill the memory behind the bytes that b holds. f returns how much it filled.
func (b *Buffer) fill(f func(p []byte) (int, error)) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return 0, err
	}
	memory := b.memory.Bytes()
	if b.start > 0 {
		b.start, b.end = 0, copy(memory, memory[b.start:b.end])
	}
	n, err := f(memory[b.end:])
	b.end += n
	return n, err
}

// usable returns why b cannot be filled or written, or nil. Called with mu held.
func (b *Buffer) usable() error {
	switch {
	case b.closed:
		return errClosedBuffer
	case b.memory.HandedOver():
		return ErrHandedOver
	}
	return nil
}

var errClosedBuffer = errors.New("the buffer is closed")

// Write appends p to the bytes that b holds. If b has no room for all of p, it appends the
// first bytes and returns io.ErrShortWrite.
func (b *Buffer) Write(p []byte) (int, error) {
	return b.fill(func(room []byte) (int, error) {
		n := copy(room, p)
		if n < len(p) {
			return n, io.ErrShortWrite
		}
		return n, nil
	})
}

// Fill reads from r until b is full or r ends, and appends the bytes to those that b holds. It
// returns io.EOF only if r ended before the first byte, and io.ErrShortBuffer if b was full
// already.
func (b *Buffer) Fill(r io.Reader) (int, error) {
	return b.fill(func(room []byte) (int, error) {
		if len(room) == 0 {
			return 0, io.ErrShortBuffer
		}
		n, err := io.ReadFull(r, room)
		if err == io.ErrUnexpectedEOF {
			err = nil
		}
		return n, err
	})
}

// Len returns how many bytes b holds that were not written yet.
func (b *Buffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end - b.start
}

// Wait waits until the device has handed b back; it returns at once if b is not handed over. The
// peer's application cannot delay that. A connection that is lost hands its Buffers back.
func (b *Buffer) Wait() { b.memory.Wait() }

// Close waits as Wait does, and frees the memory. It drops the bytes that b still holds. A second
// Close returns an error.
func (b *Buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errClosedBuffer
	}
	b.closed = true
	b.dropped.Stop()
	b.memory.Close()
	return nil
}

// WriteBuffer writes the bytes that b holds, as one Write, and hands b over until [Buffer.Wait]
// returns. It waits until the peer has room for all bytes, until the write deadline at most, and
// returns how many it has accepted. When b is handed back it holds those that were not accepted.
func (c *Conn) WriteBuffer(b *Buffer) (int, error) {
	if b.conn != c {
		return 0, c.opError("write", errOtherConn)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return 0, c.opError("write", err)
	}
	crossing.Release()
	n, err := c.stream.WriteBuffer(b.memory, b.start, b.end-b.start, c.writeDeadline)
	if b.start += n; b.start == b.end {
		b.start, b.end = 0, 0
	}
	return n, c.opError("write", err)
}
