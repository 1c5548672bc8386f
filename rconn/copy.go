package rconn

import (
	"errors"
	"io"
	"math"
	"os"

	pool "github.com/libp2p/go-buffer-pool"

	"github.com/ringnet/ringnet/internal/copying"
	"github.com/ringnet/ringnet/internal/crossing"
)

// io.Copy to and from a connection. A regular file is left where the connection has accepted
// its bytes, and is written straight from the receive ring. Other readers and writers are
// copied by way of a buffer: a reader that blocks for ever would keep the connection's turn
// to write, and a writer might parse memory that the peer is changing.

// copyLen is how many bytes of a file are moved at a time.
const copyLen = 64 << 10

// ReadFrom implements io.ReaderFrom: io.Copy to c calls it. It writes to c what it reads from r
// until io.EOF, and returns how many bytes c has accepted. If r is a regular file, as its Stat
// tells, or an [io.LimitedReader] of one, ReadFrom seeks back in it when it fails: it has read from
// r only the bytes that c has accepted then.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	src, most := r, &io.LimitedReader{N: math.MaxInt64}
	if limited, ok := r.(*io.LimitedReader); ok {
		src, most = limited.R, limited
	}
	f, ok := src.(io.ReadSeeker)
	if !ok || !regular(f) {
		n, err := copying.To(c, r)
		return n, c.opError("readfrom", err)
	}
	buf := pool.Get(copyLen)
	defer pool.Put(buf)
	n, err := pieces(func() (int, error) {
		if most.N <= 0 {
			return 0, io.EOF
		}
		crossing.Release()
		n, err := c.writeRead(f, buf[:min(most.N, copyLen)])
		most.N -= int64(n)
		return n, err
	})
	return n, c.opError("readfrom", err)
}

var errImpossibleRead = errors.New("the io.Reader returned a count that is negative or larger than its buffer")

// writeRead writes what one Read of f returns, and seeks back behind what was accepted of it.
func (c *Conn) writeRead(f io.ReadSeeker, buf []byte) (int, error) {
	n, err := f.Read(buf)
	if n < 0 || n > len(buf) {
		return 0, errImpossibleRead
	}
	if n == 0 {
		return 0, err
	}
	accepted, failed := c.stream.Write(buf[:n], c.writeDeadline)
	if failed == nil {
		return n, err
	}
	if _, err := f.Seek(int64(accepted-n), io.SeekCurrent); err != nil {
		failed = errors.Join(failed, err)
	}
	return accepted, failed
}

// WriteTo implements io.WriterTo: io.Copy from c calls it. It writes to w what it reads from c
// until io.EOF, and returns how many bytes that were. If w is an *os.File of a regular file,
// WriteTo writes straight from the receive ring; when that fails, the bytes that the file has not
// taken can still be read from c.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	f, ok := w.(*os.File)
	if !ok || !regular(f) {
		n, err := copying.From(w, c)
		return n, c.opError("writeto", err)
	}
	n, err := pieces(func() (int, error) {
		crossing.Acquire()
		return c.stream.ReadTo(f, copyLen, c.readDeadline)
	})
	return n, c.opError("writeto", err)
}

// regular reports whether v is a regular file. It need not be an *os.File: that
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
func pieces(move func() (int, error)) (total int64, err error) {
	for err == nil {
		var n int
		n, err = move()
		total += int64(n)
	}
	if err == io.EOF {
		err = nil
	}
	return total, err
}
