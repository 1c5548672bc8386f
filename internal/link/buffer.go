package link

import (
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
)

// Buffer is registered memory that its owner fills and hands over to a stream of the
// link: the device sends from it, and it is handed back when the device has. The link
// stays until its buffers are closed.
type Buffer struct {
	link   *Link
	memory fabric.Memory
	size   int // registered, in bytes

	// Guarded by link.mu.
	lent   bool          // the device may still send from it
	back   chan struct{} // closed when it has been handed back; nil before it was handed over
	closed bool
}

// NewBuffer registers memory for a buffer of the given size, in bytes, of which the stream, or another of
// its link, can write. While the link has no queue pair it waits. It fails as Write does when nothing can
// be written any more.
func (s *Stream) NewBuffer(size int) (*Buffer, error) {
	l := s.link
	b, err := s.newBuffer(fabric.Pages(size))
	if err != nil {
		return nil, reclaimOn(err, l.holders(err))
	}
	return b, nil
}

func (s *Stream) newBuffer(n int) (*Buffer, error) {
	l := s.link
	l.lock()
	defer l.unlock()
	for {
		if err := s.awaitUp(); err != nil {
			return nil, err
		}
		if err := l.memory.account.Reserve(n); err != nil {
			return nil, err
		}
		l.m.Own() // so the endpoint stays
		memory, err := l.register(n, fabric.LocalWrite)
		if err == nil {
			b := &Buffer{link: l, memory: memory, size: n}
			l.buffers[b] = struct{}{}
			return b, nil
		}
		l.m.Disown()
		if l.m.Stage() == machine.Up {
			return nil, err
		}
	}
}

// awaitUp waits while the link seeks another queue pair, and returns why nothing can be written on the
// stream any more, or nil. It releases mu meanwhile.
func (s *Stream) awaitUp() error {
	l := s.link
	var err error
	l.awaitSettled(func() (enough bool) {
		enough, err = s.m.MayWrite()
		return enough || err != nil
	})
	return err
}

// Bytes is the memory. It must not be written to while the buffer is handed over.
func (b *Buffer) Bytes() []byte { return b.memory.Bytes() }

// HandedOver reports whether the device may still send from the buffer.
func (b *Buffer) HandedOver() bool {
	b.link.lock()
	defer b.link.unlock()
	return b.lent
}

// Wait waits until the buffer has been handed back. No peer can delay that: what was
// accepted has its place at the peer, so the device sends it or fails.
func (b *Buffer) Wait() {
	b.link.lock()
	back := b.back
	b.link.unlock()
	if back != nil {
		<-back
	}
}

// Close frees the memory, when the buffer has been handed back.
func (b *Buffer) Close() {
	b.Wait()
	l := b.link
	l.lock()
	defer l.unlock()
	if b.closed {
		return
	}
	b.closed = true
	if !l.path.owner.moving { // else freeMoved frees it
		b.free(l.free)
	}
	l.m.Disown()
}

// free frees the memory of a buffer that is closed, by a function that does so.
func (b *Buffer) free(free func(m fabric.Memory) bool) {
	delete(b.link.buffers, b)
	if free(b.memory) {
		b.link.memory.account.Release(b.size)
	}
}

// returned hands the buffer back.
func (b *Buffer) returned() {
	b.lent = false
	close(b.back)
}

// WriteBuffer is one Write of n of the buffer's bytes, from a position on, and hands the
// buffer over. The buffer must be of the stream's link, and not be handed over yet.
func (s *Stream) WriteBuffer(b *Buffer, from, n int, d *deadline.Deadline) (done int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	l := s.link
	l.lock()
	loan := l.m.Lend(b.memory, b)
	b.lent, b.back = true, make(chan struct{})
	l.unlock()
	defer func() {
		l.lock()
		defer l.unlock()
		l.m.Written(loan)
	}()
	for done < n {
		m, err := s.writeSome(gather{n: n - done, loan: loan, from: from + done}, d)
		done += m
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
