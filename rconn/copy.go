package rconn

import (
	"errors"
	"io"
	"math"
	"os"
	"sync"

	"github.com/ringnet/ringnet/internal/deadline"
)

// io.Copy to and from a connection. A regular file goes straight into the send
// buffer, and out of the receive buffer: one copy less than by Write and Read.
// Only what says that it is one does: it should not wait long with the buffer in
// its hands. And only the kernel is shown the receive buffer, for the peer may be
// changing it.

var errImpossibleRead = errors.New("the reader says that it has read more than it was asked for, or less than nothing")

// Without these, io.Copy would come back.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)

// ReadFrom writes what it reads from r until that ends, as io.Copy does, which
// calls it. A regular file, by what its Stat says, or an [io.LimitedReader] of
// one, is read straight into the send buffer, 64 KiB at most at a time. If it
// fails it says how many bytes it accepted; after a deadline, the file has been
// read so far and no further.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	src, most := r, &io.LimitedReader{N: math.MaxInt64}
	if limited, ok := r.(*io.LimitedReader); ok {
		src, most = limited.R, limited
	}
	if !regular(src) {
		return io.Copy(writerOnly{c}, r)
	}
	n, err := c.pieces(&c.writing, writeCall, c.writeDeadline, func() (int, error) {
		if most.N <= 0 {
			return 0, io.EOF
		}
		n, err := c.acceptFile(src, int(min(most.N, int64(c.chunk))))
		most.N -= int64(n)
		return n, err
	})
	return n, c.opError("readfrom", err)
}

// WriteTo reads until the stream ends, and writes that to w, as io.Copy does,
// which calls it. A regular file is written straight from the receive buffer. If
// that fails, what the file did not take can still be read.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	f, ok := w.(*os.File)
	if !ok || !regular(f) {
		return io.Copy(w, readerOnly{c})
	}
	n, err := c.pieces(&c.reading, readCall, c.readDeadline, func() (int, error) { return c.takeFile(f) })
	return n, c.opError("writeto", err)
}

// regular says whether v is a regular file. It need not be an *os.File: that
// hides itself in another type when io.Copy calls its WriteTo.
func regular(v any) bool {
	f, ok := v.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// pieces moves piece by piece until there is an error, and returns how many bytes
// that were. Between pieces other calls have their turn, as they have when Write
// or Read are called for each.
func (c *Conn) pieces(turn *sync.Mutex, which int, d *deadline.Deadline, piece func() (int, error)) (total int64, err error) {
	for err == nil {
		var n int
		n, err = c.piece(turn, which, d, piece)
		total += int64(n)
	}
	if err == io.EOF {
		err = nil
	}
	return total, err
}

// piece calls move, with mu held, and waits if that has moved nothing. It leaves
// no lock behind when the file panics.
func (c *Conn) piece(turn *sync.Mutex, which int, d *deadline.Deadline, move func() (int, error)) (int, error) {
	turn.Lock()
	defer turn.Unlock()
	if d.Expired() && !c.isClosed() {
		return 0, os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	n, err := move()
	c.mu.Unlock()
	if n == 0 && err == nil {
		err = c.wait(which, d)
	}
	return n, err
}

// acceptFile is accept for up to n of the next bytes of f. Called with mu held,
// which it lets go of to read them.
func (c *Conn) acceptFile(f io.Reader, n int) (int, error) {
	n, err := c.room(n)
	first, _ := c.staging.Reserve(n)
	if len(first) == 0 {
		return 0, err
	}
	handOver := c.handsOver()
	c.mu.Unlock()
	raceRelease()
	n, err = f.Read(first)
	c.mu.Lock()
	if n < 0 || n > len(first) {
		return 0, errImpossibleRead
	}
	if n == 0 {
		return 0, err
	}
	n, ended := c.staged(n, handOver)
	if ended != nil {
		return n, ended
	}
	return n, err
}

// takeFile is take for f, a message's worth at most. Called with mu held, which
// it lets go of to write.
func (c *Conn) takeFile(f *os.File) (int, error) {
	first, _, err := c.arrived(c.chunk)
	if len(first) == 0 {
		return 0, err
	}
	c.mu.Unlock()
	raceAcquire()
	n, err := f.Write(first)
	c.mu.Lock()
	c.taken(n)
	return n, err
}
