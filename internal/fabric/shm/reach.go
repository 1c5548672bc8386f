//go:build linux

package shm

// How a dialer chooses a listener and connects to it, and when it lets the listener
// send a descriptor.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// Why a dialer reaches no listener: there is none, or the kernel's queue of one is full. Any
// process can fill that queue, so it says no more than that a later dial may succeed.
var (
	errNoListener = &fabric.RejectError{Reason: fabric.RejectNoListener}
	errFull       = &fabric.RejectError{Reason: fabric.RejectConsumer, Private: wire.Full.Append(nil)}
)

// reach connects the socket to the best trusted listener for the remote address. It
// asks the kernel for all listeners only if this user has none by a plain name, for the
// answer takes the longer the more sockets this host has.
func (e *endpoint) reach(ctx context.Context) error {
	if e.reachFirst(ctx, e.f.plainNames(e.remote, ownUser()), true) == nil {
		return nil
	}
	trusted, untrusted, err := e.f.trustedListeners(ctx, e.remote)
	if errors.Is(err, errNoOwners) {
		// A listener whose queue is full may be one that is not trusted.
		return e.reachFirst(ctx, e.f.plainNames(e.remote, slices.Compact([]uint32{ownUser(), 0})...), false)
	}
	if err != nil {
		return err
	}
	err = e.reachFirst(ctx, trusted, true)
	if err == errNoListener && untrusted != nil {
		return fmt.Errorf("the listener at %v: %w", e.remote, untrusted)
	}
	return err
}

// reachFirst connects to the first of the listeners that is there, and whose owner's it is: any user
// can take any name. It returns errFull if the queue of one is full: at once if wait
// is set, otherwise if none of those behind it connects.
func (e *endpoint) reachFirst(ctx context.Context, listeners []namedSocket, wait bool) error {
	result := error(errNoListener)
	for _, l := range listeners {
		err := e.reachAt(ctx, l)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.ECONNREFUSED):
		case errors.Is(err, syscall.EAGAIN):
			result = errFull
			if wait {
				return result
			}
		case result != errFull:
			result = fmt.Errorf("the listener at %v: %w", e.remote, err)
		}
	}
	return result
}

// reachAt connects the socket to a listener, if that is its owner's, and trusted.
func (e *endpoint) reachAt(ctx context.Context, l namedSocket) error {
	if e.sock.rights {
		// Once connected, any listener could send descriptors.
		uid, err := listenerUser(l.name)
		if err == nil {
			err = e.f.judgeOwner(ctx, uid, l.owner)
		}
		if err != nil {
			return err
		}
	}
	if err := e.sock.connect(l.name); err != nil {
		return err
	}
	uid, err := e.sock.peer()
	if err == nil {
		e.user = uid
		err = e.f.judgeOwner(ctx, uid, l.owner)
	}
	if err != nil {
		// A socket connects only once.
		err = errors.Join(err, e.renewSocket())
	}
	return err
}

// renewSocket replaces a socket that has connected to a listener that is not trusted.
func (e *endpoint) renewSocket() error {
	s, err := e.f.newSocket(e.sock.closer)
	if err != nil {
		return err
	}
	e.mu.Lock()
	old := e.sock
	e.sock = s
	e.mu.Unlock()
	if old.sleeper.Woken() {
		s.sleeper.Wake()
	}
	err = old.close()
	_ = s.bindDialer(e.local) // whose name the old socket had until now
	return err
}

// allowDescriptor lets the listener, now that it is trusted, send the memory.
func (e *endpoint) allowDescriptor() error {
	if e.sock.rights {
		return nil // it can anyway
	}
	e.sock.rights = true
	return e.sock.setPassRights(true)
}

// forbidDescriptors forbids the listener to send descriptors, if the kernel can, and checks
// that the listener has sent nothing behind the first one. An honest listener sends
// nothing before it has received an answer, except a REJ.
func (e *endpoint) forbidDescriptors(ctx context.Context) error {
	guarded := !e.f.noPassRights && e.sock.setPassRights(false) == nil
	descriptors, err := e.sock.peekDescriptors()
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
		err = errHandshake
	}
	return err
}
