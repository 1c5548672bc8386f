package proxy

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// connection is a connection that was accepted, and the one that was dialed for it.
//
// The proxy ends a stream only behind all bytes of a sender that has ended its own. In
// every other case it resets both ends, so that neither takes a part for the whole.
type connection struct {
	client, server *end
	requests       half                    // from client to server
	replies        half                    // the other way
	outcome        atomic.Pointer[Outcome] // why the proxy has stopped it, if it has

	// Only sweep uses these.
	traffic    traffic
	movedSince time.Time
}

func newConnection(client, server *end, counted *counters) *connection {
	c := &connection{client: client, server: server}
	c.requests = half{from: client, to: server, total: counted.requested}
	c.replies = half{from: server, to: client, total: counted.replied}
	return c
}

// end is one of the two connections of a connection.
type end struct {
	endpoint.Conn
	carrier carrier
	writing sync.Mutex // held while a half writes to it

	closing chan struct{}  // that of the proxy
	held    sync.Once      // a goroutine closes the end
	closes  sync.WaitGroup // that goroutine
}

// maxClosing is how many closes of a proxy that peers may make long are under way at a time: each
// may hold a thread.
const maxClosing = 8

// newEnd returns an end that Close resets, and so does the kernel when the process is
// killed.
func newEnd(c endpoint.Conn, closing chan struct{}) *end {
	endpoint.SetLinger(c, 0)
	e := &end{Conn: c, carrier: newSocket(c), closing: closing}
	if e.carrier == nil {
		e.carrier = stream{c, &e.writing}
	}
	return e
}

// finish closes an end of which both streams have ended, and delivers what was written.
func (e *end) finish() error {
	endpoint.SetLinger(e.Conn, -1)
	return e.close()
}

// reset closes an end as endpoint.Reset does.
func (e *end) reset() {
	endpoint.SetLinger(e.Conn, 0)
	_ = e.close()
}

// close closes an end. If the peer has queued descriptors there, which the kernel closes with it for as
// long as the peer likes, a goroutine does, once fewer than maxClosing do.
func (e *end) close() error {
	if !e.carrier.holdsDescriptors() {
		return e.Conn.Close()
	}
	e.held.Do(func() {
		_ = e.SetDeadline(time.Unix(1, 0)) // ends what is under way
		_ = e.CloseWrite()                 // tells the peer
		e.closes.Go(func() {
			e.closing <- struct{}{}
			defer func() { <-e.closing }()
			_ = e.Conn.Close()
		})
	})
	return nil
}

// half is one direction of a connection.
type half struct {
	from, to *end
	moved    atomic.Uint64      // bytes
	total    prometheus.Counter // of all connections
}

// readError is the error of a half whose sender has failed. Its bytes have no end, and
// the receiver must not take them for complete.
type readError struct{ error }

func (e readError) Unwrap() error { return e.error }

// run moves bytes both ways until both ends have ended their streams, one of them has
// failed, or the proxy stops the connection. Then it closes both ends.
func (c *connection) run() error {
	defer c.server.closes.Wait()
	defer c.client.closes.Wait()
	replied := make(chan error, 1)
	go func() { replied <- c.replies.copy() }()
	err := errors.Join(c.requests.copy(), <-replied)
	if truncated(err) { // copy has reset both
		return err
	}
	return errors.Join(err, c.client.finish(), c.server.finish())
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
		h.from.reset()
		h.to.reset()
	default:
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
	next, write := h.from.carrier.source(), h.to.carrier.sink(&h.moved)
	for {
		b, n, err := next()
		if n > 0 {
			before := h.moved.Load()
			h.to.writing.Lock()
			failed := write(b[:n])
			h.to.writing.Unlock()
			h.total.Add(float64(h.moved.Load() - before))
			buffers.Put(b)
			if failed != nil {
				return failed
			}
		}
		switch {
		case err == io.EOF:
			return err
		case err != nil:
			return readError{err}
		}
	}
}

// senderLostBy is why a half that waits to write has lost its sender, which it would find out only when
// it reads again, or nil.
func (h *half) senderLostBy() error {
	if h.to.writing.TryLock() {
		h.to.writing.Unlock()
		return nil
	}
	return h.from.carrier.lostBy()
}

// lostBy is why an end is lost, if no half notices that.
func (c *connection) lostBy() error {
	return errors.Join(c.requests.senderLostBy(), c.replies.senderLostBy())
}

// stop has both ends reset, whatever is under way, for the first reason that it is given. It does not wait.
func (c *connection) stop(why Outcome) {
	if c.outcome.CompareAndSwap(nil, &why) {
		go c.client.reset()
		go c.server.reset()
	}
}

// traffic changes when bytes move.
type traffic struct{ moved, byClient, byServer uint64 }

// quiet returns for how long the calls of quiet have seen no traffic.
func (c *connection) quiet(now time.Time) time.Duration {
	t := traffic{c.requests.moved.Load() + c.replies.moved.Load(), c.client.carrier.taken(), c.server.carrier.taken()}
	if t != c.traffic || c.movedSince.IsZero() {
		c.traffic, c.movedSince = t, now
	}
	return now.Sub(c.movedSince)
}
