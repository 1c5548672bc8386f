//go:build linux && cgo

package verbs

// Sleeping until there is something to do. The completion channel's descriptor
// lives in Go's netpoller; whoever else has news sets a read deadline in the
// past, which wakes the reader without another descriptor.

// #cgo noescape rn_take_event
// #cgo nocallback rn_take_event
// #include "shim.h"
import "C"

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// openChannel makes the completion channel and gives its descriptor to an
// os.File, which is the one to close it.
func (e *endpoint) openChannel() error {
	if rc := C.rn_create_comp_channel(e.id.verbs, &e.channel); rc != 0 {
		return deviceError("ibv_create_comp_channel", rc)
	}
	fd := int(e.channel.fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(fd), "ibv_comp_channel")
	e.file.Store(file)
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	e.raw, e.take = raw, e.takeEvent
	return nil
}

func (e *endpoint) closeChannel() C.int {
	if file := e.file.Load(); file != nil {
		file.Close()
	}
	return C.rn_free_comp_channel(e.channel)
}

// Wait implements [fabric.Endpoint].
func (e *endpoint) Wait() error {
	if err := e.changes.Next(); err != nil {
		return err
	}
	if e.queue == nil {
		return net.ErrClosed
	}
	err := e.raw.Read(e.take)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// In this order: a Wake in between finds woken set and does nothing,
		// rightly, since this Wait returns.
		e.file.Load().SetReadDeadline(time.Time{})
		e.woken.Store(false)
	} else if err != nil {
		return err
	}
	return e.changes.Next()
}

// takeEvent returns false to sleep on. There are no more events than Arms, so
// what is left when it returns true is soon taken.
func (e *endpoint) takeEvent(uintptr) bool {
	if e.gone {
		return false
	}
	var taken C.int
	if rc := C.rn_take_event(e.queue, &taken); rc != 0 && syscall.Errno(rc) != syscall.EINTR {
		// The kernel has cut the device off.
		e.gone = true
		e.notify(fabric.ErrDeviceRemoved, fabric.ErrDeviceRemoved)
		return true
	}
	// The queue may still be armed from the handshake, for nobody.
	return taken != 0 && e.armed.Swap(false)
}

// watchFirstMessage has the handshake told when the peer's first message has
// arrived, until the function returned is called. Devices announce it by
// IBV_EVENT_COMM_EST, but only to a queue pair that is not in RTS yet, and
// soft-RoCE never. It comes after the answer, and so after Arm. A Wake meanwhile
// is for the next Wait.
func (e *endpoint) watchFirstMessage() (stop func(), err error) {
	if err := e.Arm(); err != nil {
		return nil, err
	}
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stopped.Load() {
			err := e.raw.Read(e.take)
			if err == nil {
				e.receive(cmEvent{kind: commEst})
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			// Before stopped is looked at: what stop interrupts after that is
			// the next Read.
			e.file.Load().SetReadDeadline(time.Time{})
		}
	}()
	return func() {
		stopped.Store(true)
		interrupt(e.file.Load())
		<-done
		e.armed.Store(false)
		// In this order: a Wake in between interrupts by itself.
		e.file.Load().SetReadDeadline(time.Time{})
		if e.woken.Load() {
			interrupt(e.file.Load())
		}
	}, nil
}

// Wake implements [fabric.Endpoint].
func (e *endpoint) Wake() {
	file := e.file.Load()
	if file == nil || e.woken.Swap(true) {
		return // before Open nobody waits
	}
	interrupt(file)
}

// interrupt has the present Read of the file end, and all until the deadline is
// set again.
func interrupt(file *os.File) { file.SetReadDeadline(time.Unix(1, 0)) }

// notify has Wait return err. What says that the connection is lost is told
// once for each kind.
func (e *endpoint) notify(kind, err error) {
	e.changes.Add(kind, err)
	e.Wake()
}
