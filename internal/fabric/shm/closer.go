//go:build linux

package shm

// Closing descriptors that a peer may have made slow to close.
//
// A process that can send to a Unix socket can queue descriptors there
// (SCM_RIGHTS), and closing one of them may block for as long as that process
// likes: that of a TCP connection that lingers over unacknowledged data, say. The
// kernel also closes those that are still queued, in the system call that reads
// without asking for them or closes the socket. Where it has SO_PASSRIGHTS (Linux
// 6.16) only a trusted listener can queue any. Elsewhere a dialer connects to
// trusted listeners only, and a socket at which descriptors are queued is not
// read, only closed, by a few goroutines that may block without harm to others.

import (
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxClosing is how many closes of one closer may be under way at a time:
	// each may hold a thread.
	maxClosing = 8

	// maxWaiting is how many closes may wait for those before admit fails. Honest
	// peers cause fewer at a time, and a process may have more descriptors.
	maxWaiting = 64
)

var errHeldUp = errors.New("too many file descriptors that were sent here are still being closed")

// closer closes descriptors in the background. Equal closers share the bounds: those of a listener,
// of an address that is dialed, or of the user whose members of groups are reached. So a peer that
// holds up one of these holds up no other.
type closer struct{ of any }

// newCloser returns a closer that equals no other.
func newCloser() closer { return closer{new(int)} }

// closes are those of one closer.
type closes struct {
	underWay int
	waiting  []io.Closer
}

// closing has the closes of all closers that have any.
var closing = struct {
	sync.Mutex
	by map[closer]*closes
}{by: make(map[closer]*closes)}

// close closes x in a goroutine, once fewer than maxClosing closes are under way.
func (c closer) close(x io.Closer) {
	closing.Lock()
	defer closing.Unlock()
	all := closing.by[c]
	if all == nil {
		all = new(closes)
		closing.by[c] = all
	}
	if all.underWay == maxClosing {
		all.waiting = append(all.waiting, x)
		return
	}
	all.underWay++
	go c.run(x)
}

// run closes x, and then what waits, one after the other.
func (c closer) run(x io.Closer) {
	for x != nil {
		_ = x.Close()
		x = c.next()
	}
}

// next returns what has waited for longest. If nothing waits it returns nil, and
// counts run as ended.
func (c closer) next() io.Closer {
	closing.Lock()
	defer closing.Unlock()
	all := closing.by[c]
	if len(all.waiting) > 0 {
		x := all.waiting[0]
		all.waiting = all.waiting[1:]
		return x
	}
	if all.underWay--; all.underWay == 0 {
		delete(closing.by, c)
	}
	return nil
}

// admit returns errHeldUp if maxWaiting closes are waiting. It is called before a
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
