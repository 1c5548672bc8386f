//go:build linux

package shm

// Sleeping until there is something to do. The sleeper stores waiting = 1 and
// looks again; whoever has a message for it publishes it and then, if waiting
// is 1, makes it 0 and rings. Both use sequentially consistent operations, as
// sync/atomic's are, so one of them sees the other.

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// waiter is what an endpoint's sleeping needs.
type waiter struct {
	armed atomic.Bool
	arms  atomic.Uint64

	// What follows is Wait's own.
	rings uint64                // by the peer
	hung  bool                  // there is nothing more to hear from the socket
	take  func(fd uintptr) bool // takeRing
	buf   [8]byte
}

// Arm implements [fabric.Endpoint].
func (e *endpoint) Arm() error {
	e.armed.Store(true)
	if e.own != nil {
		e.arms.Add(1)
		e.own.waiting.Store(1)
	}
	return nil
}

// event wakes who is armed, after a completion that needs no message: of a send
// or by a flush.
func (e *endpoint) event() {
	if e.armed.Load() && e.armed.Swap(false) {
		e.sock.wake()
	}
}

// Wait implements [fabric.Endpoint].
func (e *endpoint) Wait() error {
	if err := e.changes.Next(); err != nil {
		return err
	}
	if err := e.sock.wait(e.take); err != nil {
		return err
	}
	return e.changes.Next()
}

// takeRing takes a doorbell or the news that there will be none. It returns
// false to sleep on.
func (e *endpoint) takeRing(uintptr) bool {
	if e.hung {
		return false
	}
	if err := e.sock.strange(); err != nil {
		e.hung = true
		e.notify(fabric.ErrQueuePair, fmt.Errorf("%w: %w", err, fabric.ErrQueuePair))
		return true
	}
	n, err := e.sock.take(e.buf[:])
	switch {
	case err == unix.EAGAIN:
		return false
	case err != nil || n == 0:
		e.hung = true
		e.notify(fabric.ErrDisconnected, fabric.ErrDisconnected)
	default:
		// Every ring takes a one from waiting, and only Arm puts it there.
		e.rings++
		if e.rings > e.arms.Load() {
			e.hung = true
			e.notify(fabric.ErrQueuePair, fmt.Errorf("the peer rings when nobody sleeps: %w", fabric.ErrQueuePair))
		}
	}
	return true
}

// Wake implements [fabric.Endpoint].
func (e *endpoint) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sock.wake()
}

// notify has Wait return err, once for each kind.
func (e *endpoint) notify(kind, err error) {
	e.changes.Add(kind, err)
	e.sock.wake()
}
