package ringnet

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
)

// acceptor is the part that both kinds of listener have in common: connections of type T
// wait here for Accept.
type acceptor[T any] struct {
	addr     Addr
	deadline *deadline.Deadline
	accepted chan T          // connections that wait for Accept, the oldest first
	ctx      context.Context // ends when the listener is closed
	cancel   context.CancelFunc
	failed   chan struct{} // closed when there will be no more connections
	err      error         // why; set before failed is closed
}

// The acceptors of the two kinds of listener. go doc would show a generic type that they embed.
type (
	connAcceptor = acceptor[waiting]
	autoAcceptor = acceptor[accepted]
)

// newAcceptor returns an acceptor with room for so many connections.
func newAcceptor[T any](room int) acceptor[T] {
	a := acceptor[T]{
		deadline: deadline.New(),
		accepted: make(chan T, room),
		failed:   make(chan struct{}),
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// next waits for the next connection, until the deadline.
func (a *acceptor[T]) next() (next T, err error) {
	if a.ctx.Err() != nil {
		return next, net.ErrClosed
	}
	if a.deadline.Expired() {
		return next, os.ErrDeadlineExceeded
	}
	select {
	case next = <-a.accepted:
		return next, nil
	case <-a.ctx.Done():
		return next, net.ErrClosed
	case <-a.failed:
		return next, a.err
	case <-a.deadline.Done():
		return next, os.ErrDeadlineExceeded
	}
}

// fail makes Accept return err from now on, though a connection that waits may still come
// first. It is called once.
func (a *acceptor[T]) fail(err error) {
	a.err = err
	close(a.failed)
}

func (a *acceptor[T]) setDeadline(t time.Time) error {
	if a.ctx.Err() != nil {
		return a.opError("set", net.ErrClosed)
	}
	a.deadline.Set(t)
	return nil
}

// opError wraps what went wrong in an operation of the listener.
func (a *acceptor[T]) opError(op string, err error) error {
	return opError(op, a.addr.Network(), nil, a.addr, err)
}
