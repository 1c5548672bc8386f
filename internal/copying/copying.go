// Package copying is io.Copy with buffers that are used again. io.Copy makes one of
// 32 KiB for each call, and a connection that proxies and servers copy to and from is
// called once for each request.
package copying

import (
	"io"
	"syscall"

	pool "github.com/libp2p/go-buffer-pool"
)

// bufferLen is io.Copy's: a copy that waits for its reader holds a buffer.
const bufferLen = 32 << 10

// These hide the methods ReadFrom and WriteTo of the values in them.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)

// To copies from r to w, as io.Copy does, with w's Write.
func To(w io.Writer, r io.Reader) (int64, error) { return copyBy(writerOnly{w}, r) }

// From copies from r to w, as io.Copy does, with r's Read. The kernel cannot move the bytes
// of r by itself, so if w has a descriptor, its ReadFrom would only make a buffer: From uses
// Write.
func From(w io.Writer, r io.Reader) (int64, error) {
	if HasDescriptor(w) {
		w = writerOnly{w}
	}
	return copyBy(w, readerOnly{r})
}

func copyBy(w io.Writer, r io.Reader) (int64, error) {
	buf := pool.Get(bufferLen)
	defer pool.Put(buf)
	return io.CopyBuffer(w, r, buf)
}

// HasDescriptor reports whether v, or the reader that v limits, is a file or a socket,
// whose bytes the kernel may move by itself. A connection of ringnet, which has a Carrier, is
// not, although it is a syscall.Conn.
func HasDescriptor(v any) bool {
	if limited, ok := v.(*io.LimitedReader); ok {
		v = limited.R
	}
	_, ours := v.(interface{ Carrier() string })
	_, ok := v.(syscall.Conn)
	return ok && !ours
}
