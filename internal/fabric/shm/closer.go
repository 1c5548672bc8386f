//go:build linux

package shm

// System calls that a peer can make long: goroutines make them, of which so many may block.
//
// Whoever shares a file in memory can hold its lock, by writing to it from a page that never comes
// for example, and then calls for its seals, its size or its holes sleep. And closing a descriptor
// that a peer has made may block. A process that can send to a Unix socket can queue descriptors there
// (SCM_RIGHTS), and closing one of them may block for as long as that process
// likes: that of a TCP connection that lingers over unacknowledged data, say. The
// kernel also closes those that are still queued, in the system call that reads
// without asking for them or closes the socket. Where it has SO_PASSRIGHTS (Linux
// 6.16) only a trusted listener can queue any. Elsewhere a dialer connects to
// trusted listeners only, and a socket at which descriptors are queued is not
// read, only closed, by a few goroutines that may block without harm to others.

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxClosing is how many calls of one closer may be under way at a time:
	// each may hold a thread.
	maxClosing = 8

	// maxWaiting is how many calls may wait for those before admit fails. Honest
	// peers cause fewer at a time, and a process may have more descriptors.
	maxWaiting = 64
)

var errHeldUp = errors.New("too many system calls are held up that depend on the peer")

// closer closes descriptors, and makes other such calls, in the background. Equal closers share the
// bounds: those of a listener, or of an address that is dialed. So a peer that holds up one of these
// holds up no other.
type closer struct{ of any }

// callsOf is of a closer for calls about the memory of connections: to an address, or of one user
// to a listener.
type callsOf struct {
	of   any
	user uint32
}

// newCloser returns a closer that equals no other.
func newCloser() closer { return closer{new(int)} }

// closes are the calls of one closer.
type closes struct {
	underWay int
	waiting  []func()
}

// closing has the calls of all closers that have any.
var closing = struct {
	sync.Mutex
	by map[closer]*closes
}{by: make(map[closer]*closes)}

// close closes x in a goroutine, once fewer than maxClosing calls are under way.
func (c closer) close(x io.Closer) { c.begin(func() { _ = x.Close() }) }

// begin calls f in a goroutine, once fewer than maxClosing calls are under way.
func (c closer) begin(f func()) {
	closing.Lock()
	defer closing.Unlock()
	all := closing.by[c]
	if all == nil {
		all = new(closes)
		closing.by[c] = all
	}
	if all.underWay == maxClosing {
		all.waiting = append(all.waiting, f)
		return
	}
	all.underWay++
	go c.run(f)
}

// within calls f as begin does, and returns what f does, or when ctx ends its error. Then f goes on,
// and over is closed when it has returned.
func (c closer) within(ctx context.Context, f func() error) (over <-chan struct{}, err error) {
	done := make(chan struct{})
	var result error
	c.begin(func() {
		defer close(done)
		result = f()
	})
	select {
	case <-done:
		return done, result
	case <-ctx.Done():
		return done, ctx.Err()
	}
}

// run calls f, and then what waits, one after the other.
func (c closer) run(f func()) {
	for f != nil {
		f()
		f = c.next()
	}
}

// next returns what has waited for longest. If nothing waits it returns nil, and
// counts run as ended.
func (c closer) next() func() {
	closing.Lock()
	defer closing.Unlock()
	all := closing.by[c]
	if len(all.waiting) > 0 {
		f := all.waiting[0]
		all.waiting = all.waiting[1:]
		return f
	}
	if all.underWay--; all.underWay == 0 {
		delete(closing.by, c)
	}
	return nil
}

// admit returns errHeldUp if maxWaiting calls are waiting. It is called before a
// connection is begun that the closer may have to close.
func (c closer) admit() error {
	closing.Lock()
	defer closing.Unlock()
	if all := closing.by[c]; all != nil && len(all.waiting) >= maxWaiting {
		return errHeldUp
	}
	return nil
}

// descriptor is one that came over a socket.
type descriptor int

func (d descriptor) Close() error { return unix.Close(int(d)) }
