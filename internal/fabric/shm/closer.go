//go:build linux

package shm

// Closing what others have had their hands on.
//
// Whoever can send to a Unix socket can queue descriptors there (SCM_RIGHTS), and
// closing one of them may block for as long as its sender likes: that of a TCP
// connection that lingers over data which nobody acknowledges, say. The kernel
// closes those that are still queued, too, on behalf of whoever reads without
// asking for them or closes the socket. Where it has SO_PASSRIGHTS (Linux 6.16)
// nobody but a trusted listener gets to queue any. Elsewhere sockets with
// descriptors queued at them are not read, only closed, by a few goroutines that
// may block without harm to others.

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxHeldUp is how many closes of one closer may block at a time, each with
	// a thread.
	maxHeldUp = 8

	// patience is how long all of them may take before they count as held up.
	patience = time.Second
)

var errHeldUp = errors.New("closing what other users have sent takes for ever (Linux 6.16 would keep it from being sent)")

// closer closes things in the background. Each listener has one, and all dialers
// together: whoever holds up one of them holds up no other.
type closer struct {
	slots chan struct{}
	stuck atomic.Bool // all slots were taken for longer than patience
}

// dialersCloser closes what dialers have had to do with.
var dialersCloser = newCloser()

func newCloser() *closer { return &closer{slots: make(chan struct{}, maxHeldUp)} }

// close closes x soon.
func (c *closer) close(x io.Closer) {
	go func() {
		c.slots <- struct{}{}
		_ = x.Close()
		<-c.slots
	}()
}

// idle reports whether there is nothing to be closed.
func (c *closer) idle() bool { return len(c.slots) == 0 }

// admit is asked before anything new is begun that will have to be closed. It
// returns errHeldUp if nothing is closed any more.
func (c *closer) admit() error {
	if c.stuck.Load() {
		select {
		case c.slots <- struct{}{}:
		default:
			return errHeldUp
		}
	} else {
		select {
		case c.slots <- struct{}{}:
		case <-time.After(patience):
			c.stuck.Store(true)
			return errHeldUp
		}
	}
	<-c.slots
	c.stuck.Store(false)
	return nil
}

// descriptor is one that came over a socket.
type descriptor int

func (d descriptor) Close() error { return unix.Close(int(d)) }
