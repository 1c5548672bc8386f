package main

// This file passes signals on to a command, wherever it runs.

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long a command may take to end after a signal.
const grace = 5 * time.Second

// supervise calls f, which runs a command until that or ctx ends, passes the signals that
// it receives on to it, and returns the exit status of the tool. After a signal ctx ends
// when the command has not ended within grace, and after a second signal at once.
func supervise(ctx context.Context, f func(ctx context.Context, signals <-chan unix.Signal) (int, error)) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(caught)
	pass := make(chan unix.Signal, 1)
	var first atomic.Int32
	go func() {
		select {
		case s := <-caught:
			first.Store(int32(s.(unix.Signal)))
			pass <- s.(unix.Signal)
		case <-ctx.Done():
			return
		}
		s := unix.SignalName(unix.Signal(first.Load()))
		select {
		case <-time.After(grace):
			cancel(fmt.Errorf("the command did not end within %v of %s", grace, s))
		case <-caught:
			cancel(fmt.Errorf("cut off by another signal after %s", s))
		case <-ctx.Done():
		}
	}()
	status, err := f(ctx, pass)
	if s := first.Load(); s != 0 {
		return exitSignal + int(s), err
	}
	return status, err
}
