//go:build linux

package shm

// How a dialer reaches a listener: which one, and what it lets it send.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// reach connects the socket to a trusted listener that hears the address.
func (e *endpoint) reach(ctx context.Context) error {
	const shortest, longest = time.Millisecond, 100 * time.Millisecond
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := e.reachNow(ctx)
		if err != errBusy {
			return err
		}
		// Waiting for room in the kernel would hold a thread. TCP too repeats
		// its SYN after a while.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Why a dialer reaches no listener: nobody listens, or the kernel's queue of one
// that is trusted is full.
var (
	errNobody = &fabric.RejectError{Reason: fabric.RejectNoListener}
	errBusy   = errors.New("the listener's queue is full")
)

// reachNow connects with the best listener that is trusted. The kernel is asked
// for all that there are only if this user has none by a plain name, for that
// takes the longer the more sockets this host has.
func (e *endpoint) reachNow(ctx context.Context) error {
	if e.at != "" {
		return e.reachFirst(ctx, []string{e.at}, true)
	}
	own := os.Geteuid()
	if e.reachFirst(ctx, e.f.plainNames(e.remote, own), true) == nil {
		return nil
	}
	found, untrusted, err := e.f.told(ctx, e.remote)
	if errors.Is(err, errSilent) {
		// Whoever has no room may be a stranger, or not.
		return e.reachFirst(ctx, e.f.plainNames(e.remote, slices.Compact([]int{own, 0})...), false)
	}
	if err != nil {
		return err
	}
	var names []string
	for _, s := range found {
		names = append(names, s.name)
	}
	err = e.reachFirst(ctx, names, true)
	if err == errNobody && untrusted != nil {
		return fmt.Errorf("the listener at %v: %w", e.remote, untrusted)
	}
	return err
}

// reachFirst connects with the first listener of those names that is trusted:
// one that is not may be in a trusted one's place. One that has no room either
// ends that with errBusy, or does so if none of those behind it connects.
func (e *endpoint) reachFirst(ctx context.Context, names []string, wait bool) error {
	result := error(errNobody)
	for _, name := range names {
		err := e.reachAt(ctx, name)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.ECONNREFUSED):
		case errors.Is(err, syscall.EAGAIN):
			result = errBusy
			if wait {
				return result
			}
		case result != errBusy:
			result = fmt.Errorf("the listener at %v: %w", e.remote, err)
		}
	}
	return result
}

// reachAt connects the socket to whoever has a name, if that is a trusted user.
func (e *endpoint) reachAt(ctx context.Context, name string) error {
	if e.sock.rights {
		// Whoever it connects to can send descriptors at once.
		if err := e.f.vet(ctx, name); err != nil {
			return err
		}
	}
	if err := e.sock.connect(name); err != nil {
		return err
	}
	err := e.f.trust(ctx, e.sock, true)
	if err != nil {
		// A socket connects once.
		err = errors.Join(err, e.renewSocket())
	}
	return err
}

// renewSocket puts a new socket in the place of one that is of no more use.
func (e *endpoint) renewSocket() error {
	s, err := e.f.newSocket(e.sock.closer)
	if err != nil {
		return err
	}
	e.mu.Lock()
	old := e.sock
	e.sock = s
	e.mu.Unlock()
	if old.woken.Load() {
		s.wake()
	}
	err = old.close()
	if e.named {
		_ = s.bindDialer(e.local) // the port's name is free now
	}
	return err
}

// wantDescriptor lets the listener, now that it is trusted, send the memory.
func (e *endpoint) wantDescriptor() error {
	if e.sock.rights {
		return nil // it can anyway
	}
	e.sock.rights = true
	return e.sock.passRights(true)
}

// wantNoMore ends that, if the kernel allows it, and checks that the listener
// has used it no more than it should. An honest one has nothing to say until it
// hears from this side, unless it gives up.
func (e *endpoint) wantNoMore(ctx context.Context) error {
	guarded := !e.f.lenient && e.sock.passRights(false) == nil
	descriptors, err := e.sock.next()
	switch {
	case err == unix.EAGAIN:
		e.sock.rights = !guarded
		return nil
	case err == nil && descriptors:
		return errDescriptors
	}
	_, fd, err := e.receive(ctx)
	if fd >= 0 {
		e.sock.closer.close(descriptor(fd))
	}
	if err == nil {
		err = errAnother
	}
	return err
}
