//go:build linux && cgo

package verbs

// Wait and Wake: sleeping on the completion channel's descriptor.

// #cgo noescape rn_take_event
// #cgo nocallback rn_take_event
// #include "shim.h"
import "C"

import (
	"net"
	"os"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// openChannel makes the completion channel, whose descriptor the Sleeper owns.
func (e *endpoint) openChannel() error {
	if rc := C.rn_create_comp_channel(e.id.verbs, &e.channel); rc != 0 {
		return e.device.deviceError("ibv_create_comp_channel", rc)
	}
	fd := int(e.channel.fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	s, err := fabric.NewSleeper(fd, "ibv_comp_channel")
	e.sleeper.Store(s)
	e.take = e.takeEvent
	return err
}

func (e *endpoint) closeChannel() C.int {
	if s := e.sleeper.Load(); s != nil {
		s.Close()
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
	if err := e.sleeper.Load().Sleep(e.take); err != nil {
		return err
	}
	return e.changes.Next()
}

// takeEvent takes a completion event. It returns false if the Sleeper is to sleep on.
// When it returns true, few events are left for the next calls: there are no more of
// them than Arms.
func (e *endpoint) takeEvent(uintptr) bool {
	if e.deviceGone {
		return false
	}
	var taken C.int
	if rc := C.rn_take_event(e.queue, &taken); rc != 0 && syscall.Errno(rc) != syscall.EINTR {
		// The kernel has cut the device off.
		e.deviceGone = true
		e.notify(fabric.ErrDeviceRemoved, fabric.ErrDeviceRemoved)
		return true
	}
	// The event may be that of an Arm of the handshake, for which no Wait is to return.
	return taken != 0 && e.armed.Swap(false)
}

// Wake implements [fabric.Endpoint].
func (e *endpoint) Wake() {
	if s := e.sleeper.Load(); s != nil { // before Open no Wait is called
		s.Wake()
	}
}

// notify has Wait return err. Of a kind that means that the connection is lost, Wait
// returns only the first.
func (e *endpoint) notify(kind, err error) {
	e.changes.Add(kind, err)
	e.Wake()
}
