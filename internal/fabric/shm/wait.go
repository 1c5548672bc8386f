//go:build linux

package shm

// Sleeping until there is something to do. The end that is about to sleep stores
// waiting = 1 and polls again; the other publishes a message and then, if waiting
// is 1, stores 0 and rings. Both use sequentially consistent operations, as
// sync/atomic's are, so at least one of them sees what the other has stored.

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// waiter is an endpoint's state for Arm and Wait.
type waiter struct {
	armed atomic.Bool   // the next completion makes Wait return
	arms  atomic.Uint64 // how often Arm has stored a 1 in waiting

	// Used by Wait alone:
	rings       uint64                // doorbells of the peer's
	read        bool                  // this Wait has read the socket
	socketEnded bool                  // the socket is not read any more
	ready       func(fd uintptr) bool // rung
	doorbells   doorbells
	taking      patience // doorbells
}

// Arm implements [fabric.Endpoint].
func (e *endpoint) Arm() error {
	if e.own != nil {
		e.arms.Add(1)
		e.own.waiting.Store(1)
	}
	e.armed.Store(true)
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
	e.read = false
	if err := e.sock.sleeper.Sleep(e.ready); err != nil {
		return err
	}
	if !e.read && !e.socketEnded { // Wake came before, and the socket may have ended
		e.readSocket()
	}
	return e.changes.Next()
}

// rung reports whether Wait is to return: the peer has rung, which waiting tells, or the socket has
// ended. The doorbell itself stays in the socket until the next Wait reads it: to take a packet from
// a Unix socket wakes its sender's poller, which by then does not sleep.
//
// Each Wait reads the socket once before it sleeps, for Sleep forgets what became readable
// before: the end may have come together with a doorbell.
func (e *endpoint) rung(uintptr) bool {
	if e.socketEnded {
		return false
	}
	if !e.read || !e.answered() {
		e.read = true
		e.readSocket()
	}
	return e.socketEnded || e.answered() && e.armed.Swap(false)
}

// answered reports whether the peer has stored 0 in waiting, and rings, since Arm.
func (e *endpoint) answered() bool {
	return e.armed.Load() && e.own != nil && e.own.waiting.Load() == 0
}

// readSocket takes all doorbells, or notices the end of the socket.
func (e *endpoint) readSocket() {
	for {
		began := e.taking.begin()
		n, more, err := e.sock.take(&e.doorbells)
		if slow := e.taking.end(began); err == nil {
			err = slow
		}
		e.rings += n
		switch {
		case err == io.EOF, errors.Is(err, syscall.ECONNRESET): // the peer has not read all doorbells
			e.notify(fabric.ErrDisconnected, fabric.ErrDisconnected)
		case err != nil:
			e.notify(fabric.ErrQueuePair, fmt.Errorf("%w: %w", err, fabric.ErrQueuePair))
		case e.rings > e.arms.Load(): // an honest peer rings once for each 1 in waiting, which only Arm stores
			e.notify(fabric.ErrQueuePair, fmt.Errorf("the peer sent a wake-up that this side had not asked for: %w", fabric.ErrQueuePair))
		case more:
			continue
		default:
			return
		}
		e.socketEnded = true
		return
	}
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
