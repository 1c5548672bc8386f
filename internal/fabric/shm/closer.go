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
	"net/netip"
	"runtime"
	"sync"
	"weak"

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

// closer closes descriptors in the background. Each listener has one, and each
// address that is dialed, so a peer that holds up one of them holds up no other.
type closer struct {
	mu      sync.Mutex // guards what follows
	closing int
	waiting []io.Closer
}

func newCloser() *closer { return new(closer) }

// close closes x in a goroutine, once fewer than maxClosing closes are under way.
func (c *closer) close(x io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing == maxClosing {
		c.waiting = append(c.waiting, x)
		return
	}
	c.closing++
	go c.run(x)
}

// run closes x, and then what waits, one after the other.
func (c *closer) run(x io.Closer) {
	for x != nil {
		_ = x.Close()
		x = c.next()
	}
}

// next returns what has waited for longest. If nothing waits it returns nil, and
// counts run as ended.
func (c *closer) next() io.Closer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.closing--
		return nil
	}
	x := c.waiting[0]
	c.waiting = c.waiting[1:]
	return x
}

// admit returns errHeldUp if maxWaiting closes are waiting. It is called before a
// connection is begun that the closer may have to close.
func (c *closer) admit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= maxWaiting {
		return errHeldUp
	}
	return nil
}

// dialersClosers are the closers of the addresses that are dialed, for as long
// as anything uses them.
var dialersClosers = struct {
	sync.Mutex
	to map[netip.AddrPort]weak.Pointer[closer]
}{to: make(map[netip.AddrPort]weak.Pointer[closer])}

// dialersCloser returns the closer of an address that is dialed.
func dialersCloser(to netip.AddrPort) *closer {
	dialersClosers.Lock()
	defer dialersClosers.Unlock()
	if c := dialersClosers.to[to].Value(); c != nil {
		return c
	}
	c := newCloser()
	dialersClosers.to[to] = weak.Make(c)
	runtime.AddCleanup(c, forgetCloser, to)
	return c
}

// forgetCloser runs after the closer of an address has been garbage-collected. The
// address may have another by then.
func forgetCloser(to netip.AddrPort) {
	dialersClosers.Lock()
	defer dialersClosers.Unlock()
	if dialersClosers.to[to].Value() == nil {
		delete(dialersClosers.to, to)
	}
}

// descriptor is one that came over a socket.
type descriptor int

func (d descriptor) Close() error { return unix.Close(int(d)) }
