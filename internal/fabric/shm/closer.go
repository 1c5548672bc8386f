//go:build linux

package shm

// Closing what others have had their hands on.
//
// Whoever can send to a Unix socket can queue descriptors there (SCM_RIGHTS), and
// closing one of them may block for as long as its sender likes: that of a TCP
// connection that lingers over data which nobody acknowledges, say. The kernel
// closes those that are still queued, too, on behalf of whoever reads without
// asking for them or closes the socket. Where it has SO_PASSRIGHTS (Linux 6.16)
// nobody but a trusted listener gets to queue any. Elsewhere a dialer connects to
// nobody whom it does not trust, and a socket at which descriptors are queued is
// not read, only closed, by a few goroutines that may block without harm to
// others.

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

	// maxWaiting is how many may wait for those. It is more than a moment's worth
	// of what honest peers leave behind, and less than the descriptors that a
	// process may have.
	maxWaiting = 64
)

var errHeldUp = errors.New("closing the descriptors that were sent here takes for ever")

// closer closes things in the background. Each listener has one, and each address
// that is dialed: whoever holds up one of them holds up no other.
type closer struct {
	mu      sync.Mutex // guards what follows
	closing int
	waiting []io.Closer
}

func newCloser() *closer { return new(closer) }

// close closes x soon.
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

// run closes x, and then whatever waits.
func (c *closer) run(x io.Closer) {
	for x != nil {
		_ = x.Close()
		x = c.next()
	}
}

// next returns nil, and counts run as ended, if nothing waits.
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

// admit is asked before anything new is begun that may have to be closed. It
// returns errHeldUp if too much waits already.
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

// dialersCloser closes what dialers of an address have had to do with.
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

// forgetCloser runs when the closer of an address is gone. The address may have
// got another since.
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
