package rconn

import (
	"errors"
	"io"
	"runtime"
	"sync"

	"github.com/ringnet/ringnet/internal/crossing"
	"github.com/ringnet/ringnet/internal/link"
)

// ErrHandedOver is the error of what is done with a [Buffer] that the device is still
// sending from.
var ErrHandedOver = errors.New("the buffer is handed over")

// errOtherConn is the error of a buffer that is written to another connection.
var errOtherConn = errors.New("the buffer belongs to another connection")

// Buffer is registered memory from which the device sends by itself, with no copy on the
// way. [Conn.NewBuffer] makes it; a program fills it, with Write or Fill, hands it over,
// with [Conn.WriteBuffer], and has it back, empty, when the device has sent the bytes,
// for which Wait waits. In between all methods but Wait and Close fail with
// [ErrHandedOver] and leave the bytes alone: no slice of the memory is given out.
//
//	b, err := conn.NewBuffer(1 << 20)
//	…
//	for err == nil {
//		b.Wait()
//		if _, err = b.Fill(file); err == nil {
//			_, err = conn.WriteBuffer(b)
//		}
//	}
//	b.Close()
//
// With two of them one is filled while the other is sent. Methods may be called at once.
// The memory counts as a ring's does ([Config.RecvBuffer]), is pinned on rdma, and stays,
// with the link, until Close, or until the garbage collector finds the buffer. Over shm
// nothing is gained: there a Write copies once, as a buffer is copied to the peer.
type Buffer struct {
	conn   *Conn
	memory *link.Buffer

	mu         sync.Mutex // held by the one call under way; guards what follows
	start, end int        // of the bytes to be written
	closed     bool
	dropped    runtime.Cleanup
}

// NewBuffer makes a buffer of a size in bytes, 1 at least, which is rounded up to whole
// pages, for writing to c. It fails with ENOMEM when the limit of the process does not
// allow it, as a dial does. While the path to the peer is lost it waits, as a Write does
// ([Config.ResumeTimeout]).
func (c *Conn) NewBuffer(size int) (*Buffer, error) {
	if size <= 0 {
		return nil, c.opError("buffer", errors.New("a buffer wants a byte at least"))
	}
	memory, err := c.stream.Link().NewBuffer(size)
	if err != nil {
		return nil, c.opError("buffer", err)
	}
	b := &Buffer{conn: c, memory: memory}
	b.dropped = runtime.AddCleanup(b, func(memory *link.Buffer) { go memory.Close() }, memory)
	return b, nil
}

// fill has the memory behind what b holds filled by f, which returns how much it filled.
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

// usable is why b cannot be filled or written. Called with mu held.
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

// Write appends p to what b holds. Of what has no room it takes the first bytes, and
// returns io.ErrShortWrite.
func (b *Buffer) Write(p []byte) (int, error) {
	return b.fill(func(room []byte) (int, error) {
		n := copy(room, p)
		if n < len(p) {
			return n, io.ErrShortWrite
		}
		return n, nil
	})
}

// Fill appends what it reads from r, until b is full or r ends. It returns io.EOF only if
// it has read nothing, and io.ErrShortBuffer if b was full before.
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

// Len is how many bytes b holds that were not written.
func (b *Buffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end - b.start
}

// Wait waits until b has been handed back, if it was handed over. That takes no longer
// than the device takes, whatever the peer's application does; a connection that is lost
// hands its buffers back.
func (b *Buffer) Wait() { b.memory.Wait() }

// Close frees the memory, once b has been handed back, for which it waits. What b
// holds is dropped.
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

// WriteBuffer writes what b holds, as one Write, and hands b over. It waits until the peer
// has room for all of it, or the write deadline has passed, and returns how many bytes it
// accepted; what it did not, b still holds when it is handed back. The device sends
// from b's memory, so that is not c's or the caller's before [Buffer.Wait] returns.
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
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}
