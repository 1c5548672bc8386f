package proxy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// connection is a connection that was accepted, and the one that was dialed for it.
type connection struct {
	client, server *end
	requests       half                    // from client to server
	replies        half                    // the other way
	answered       atomic.Bool             // the last bytes that were read came from the server; true at first
	outcome        atomic.Pointer[Outcome] // why the proxy has ended it, if it has

	// Only sweep uses these.
	moved      uint64
	movedSince time.Time
}

func newConnection(client, server endpoint.Conn) *connection {
	c := &connection{client: newEnd(client), server: newEnd(server), movedSince: time.Now()}
	c.answered.Store(true)
	c.requests = half{connection: c, from: c.client, to: c.server}
	c.replies = half{connection: c, from: c.server, to: c.client, reply: true}
	return c
}

// end is one of the two connections of a connection.
type end struct {
	endpoint.Conn
	socket *socket // nil if it is not the kernel's
}

func newEnd(c endpoint.Conn) *end { return &end{c, newSocket(c)} }

// half is one direction of a connection.
type half struct {
	connection *connection
	from, to   *end
	reply      bool
	moved      atomic.Uint64 // bytes
	writing    atomic.Bool   // it writes bytes that it has read
}

// errStopped is the error of a half that stop has ended while it waited to read.
var errStopped = errors.New("stopped by the proxy")

// readError is the error of a half whose sender has failed. Its bytes have no end, and
// the receiver must not take them for complete.
type readError struct{ error }

func (e readError) Unwrap() error { return e.error }

// run moves bytes both ways until both ends have ended their streams, one of them has
// failed, or the proxy stops the connection. Then it closes both ends.
func (c *connection) run() error {
	replied := make(chan error, 1)
	go func() { replied <- c.replies.copy() }()
	err := errors.Join(c.requests.copy(), <-replied)
	if truncated(err) {
		c.reset()
		return err
	}
	return errors.Join(err, c.client.Close(), c.server.Close())
}

// copy moves bytes until the sender ends its stream, and then ends the receiver's. If
// the receiver fails, copy tells the sender that its bytes are not read any more, for it
// may read only after it has written; the other half ends by itself, with the bytes that
// the receiver had sent before. If the sender fails, copy resets both.
func (h *half) copy() error {
	err := h.move()
	switch {
	case err == io.EOF:
		_ = h.to.CloseWrite() // if that fails, so does the other half
		return nil
	case truncated(err):
		h.connection.reset()
	case err != errStopped:
		_ = h.from.CloseRead()
	}
	return err
}

// truncated reports whether err says that the sender of a half has failed.
func truncated(err error) bool {
	var r readError
	return errors.As(err, &r)
}

// move moves bytes until it fails, with io.EOF at the end of the sender's stream.
func (h *half) move() error {
	next, write := h.from.newSource(), h.to.newSink()
	for {
		b, n, err := next()
		if n > 0 {
			h.connection.answered.Store(h.reply)
			h.writing.Store(true)
			m, failed := write(b[:n])
			h.writing.Store(false)
			buffers.Put(b)
			h.moved.Add(uint64(m))
			switch {
			case errors.Is(failed, os.ErrDeadlineExceeded):
				return readError{fmt.Errorf("stopped with bytes under way: %w", failed)}
			case failed != nil:
				return failed
			}
		}
		switch {
		case err == io.EOF:
			return err
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errStopped
		case err != nil:
			return readError{err}
		}
	}
}

// stop ends a connection by deadlines that have passed. Its halves still write what they
// have read, unless the reason is Idled.
func (c *connection) stop(why Outcome) {
	if !c.outcome.CompareAndSwap(nil, &why) {
		return
	}
	past := time.Unix(1, 0)
	for _, e := range []*end{c.client, c.server} {
		_ = e.SetReadDeadline(past)
		if why == Idled {
			_ = e.SetWriteDeadline(past)
		}
	}
}

// isAnswered reports whether the last bytes were a reply, and all of it is written to the
// client.
func (c *connection) isAnswered() bool {
	return c.answered.Load() && !c.replies.writing.Load()
}

// cut resets both ends, whatever is under way.
func (c *connection) cut() {
	why := Cut
	c.outcome.CompareAndSwap(nil, &why)
	c.reset()
}

// reset resets both ends.
func (c *connection) reset() {
	endpoint.Reset(c.client.Conn)
	endpoint.Reset(c.server.Conn)
}

// quiet returns for how long the calls of quiet have seen no traffic.
func (c *connection) quiet(now time.Time) time.Duration {
	if moved := c.requests.moved.Load() + c.replies.moved.Load(); moved != c.moved {
		c.moved, c.movedSince = moved, now
	}
	return now.Sub(c.movedSince)
}
