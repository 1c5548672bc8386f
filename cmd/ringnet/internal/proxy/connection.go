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

// connection is one that was accepted, and the one that was dialed for it.
type connection struct {
	client, server *end
	requests       half                    // from client to server
	replies        half                    // the other way
	answered       atomic.Bool             // nothing has come from the client since the last reply
	outcome        atomic.Pointer[Outcome] // why the proxy has ended it, if it has

	// The sweeper's.
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

// end is one of the two connections.
type end struct {
	endpoint.Conn
	socket *socket // nil if it is none of the kernel
}

func newEnd(c endpoint.Conn) *end { return &end{c, newSocket(c)} }

// half is one direction of a connection.
type half struct {
	connection *connection
	from, to   *end
	reply      bool
	moved      atomic.Uint64 // bytes
	writing    atomic.Bool   // has read what the receiver has not taken yet
}

// errStopped is how a half ends that the proxy has told to, between what it read
// and what it would read next.
var errStopped = errors.New("stopped by the proxy")

// readError is that the sender of a half is gone, so what it sent has no end, and
// the receiver must not take it for whole.
type readError struct{ error }

func (e readError) Unwrap() error { return e.error }

// run moves bytes both ways until both ends have ended their streams, or one of
// them is gone, or the proxy stops it, and closes both.
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

// copy moves bytes until the sender ends its stream, and passes that on. If the
// receiver is gone, the sender is told that nobody reads any more, for it may not
// read before it has written, and the other half ends by itself, with what the
// receiver had sent before. If the sender is gone, that ends the other half.
func (h *half) copy() error {
	err := h.move()
	switch {
	case err == io.EOF:
		_ = h.to.CloseWrite() // if it is gone, the other half says so
		return nil
	case truncated(err):
		h.connection.reset()
	case err != errStopped:
		_ = h.from.CloseRead()
	}
	return err
}

func truncated(err error) bool {
	var r readError
	return errors.As(err, &r)
}

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

// stop ends the connection between two messages, for the reason given. What has
// been read is written before, unless the receiver is idle.
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

// isAnswered says whether the last bytes that have come were a reply, and the
// client has taken it.
func (c *connection) isAnswered() bool {
	return c.answered.Load() && !c.replies.writing.Load()
}

// cut ends the connection wherever it is.
func (c *connection) cut() {
	why := Cut
	c.outcome.CompareAndSwap(nil, &why)
	c.reset()
}

func (c *connection) reset() {
	endpoint.Reset(c.client.Conn)
	endpoint.Reset(c.server.Conn)
}

// quiet returns how long nothing has moved, as far as the sweeper has seen.
func (c *connection) quiet(now time.Time) time.Duration {
	if moved := c.requests.moved.Load() + c.replies.moved.Load(); moved != c.moved {
		c.moved, c.movedSince = moved, now
	}
	return now.Sub(c.movedSince)
}
