//go:build linux

package shm

// Sleeping until there is something to do. The end that is about to sleep stores
// waiting = 1 and polls again; the other publishes a message and then, if waiting
// is 1, stores 0 and rings. Both use sequentially consistent operations, as
// sync/atomic's are, so at least one of them sees what the other has stored.

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// waiter is an endpoint's state for Arm and Wait.
type waiter struct {
	armed atomic.Bool   // the next local completion wakes Wait
	arms  atomic.Uint64 // how often Arm has stored a 1 in waiting

	// Used by Wait alone:
	rings       uint64                // doorbells of the peer's
	socketEnded bool                  // the socket is not read any more
	take        func(fd uintptr) bool // takeRing
	buf         [8]byte
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

// wakeIfArmed wakes Wait, if the endpoint is armed, after a completion for which the
// peer does not ring: of a send, or by a flush.
func (e *endpoint) wakeIfArmed() {
	if e.armed.Load() && e.armed.Swap(false) {
		e.sock.sleeper.Wake()
	}
}

// Wait implements [fabric.Endpoint].
func (e *endpoint) Wait() error {
	if err := e.changes.Next(); err != nil {
		return err
	}
	if err := e.sock.sleeper.Sleep(e.take); err != nil {
		return err
	}
	return e.changes.Next()
}

// takeRing takes a doorbell, or notices the end of the socket. It returns false if
// Wait is to sleep on.
func (e *endpoint) takeRing(uintptr) bool {
	if e.socketEnded {
		return false
	}
	if err := e.sock.checkNoDescriptors(); err != nil {
		e.socketEnded = true
		e.notify(fabric.ErrQueuePair, fmt.Errorf("%w: %w", err, fabric.ErrQueuePair))
		return true
	}
	n, err := e.sock.take(e.buf[:])
	switch {
	case err == unix.EAGAIN:
		return false
	case err != nil || n == 0:
		e.socketEnded = true
		e.notify(fabric.ErrDisconnected, fabric.ErrDisconnected)
	default:
		// An honest peer rings once for each 1 in waiting, which only Arm stores.
		e.rings++
		if e.rings > e.arms.Load() {
			e.socketEnded = true
			e.notify(fabric.ErrQueuePair, fmt.Errorf("the peer sent a wake-up that this side had not asked for: %w", fabric.ErrQueuePair))
		}
	}
	return true
}

// Wake implements [fabric.Endpoint].
func (e *endpoint) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sock.sleeper.Wake()
}

// notify makes Wait return err, once for each kind.
func (e *endpoint) notify(kind, err error) {
	e.changes.Add(kind, err)
	e.sock.sleeper.Wake()
}
