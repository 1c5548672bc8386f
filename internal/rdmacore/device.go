//go:build linux && cgo

package rdmacore

// Asynchronous events. They belong to a device context, which all queue pairs of that
// device share, so each device has one goroutine that dispatches them. It runs while a
// queue pair is open: without a reader, librdmacm may free the context of a device that is
// gone. Like the connection manager's events, these are dispatched before they are
// acknowledged, and ibv_destroy_qp waits for the acknowledgement.

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/numa"
	"github.com/ringnet/ringnet/internal/provider"
)

type deviceContext = *C.struct_rn_ibv_context

// devices are the devices that have been used.
type devices struct {
	inline  int              // what provider.InlineLimit has read
	library provider.Version // see goRound

	mu sync.Mutex // guards of
	of map[deviceContext]*device
}

// device is one, open as long as it has users. Who opens or closes it waits for nobody who does
// that with another.
type device struct {
	ctx    deviceContext
	vector atomic.Uint32
	gone   atomic.Bool // it has failed, or the kernel has cut it off

	opening sync.Mutex // guards users and, until there are users, what follows
	users   int
	attr    C.struct_rn_ibv_device_attr
	most    int           // bytes of inline data
	alone   bool          // each request is posted alone
	node    int           // near it, or numa.Unknown
	near    []int         // completion vectors; none: all
	lean    bool          // queue pairs that post writes alone take less memory
	file    *os.File      // a duplicate of the context's async_fd
	done    chan struct{} // closed when the goroutine has ended

	mu         sync.Mutex    // guards the maps
	granted    map[shape]int // inline data
	queuePairs map[*QueuePair]struct{}
	byElement  map[uint64]*QueuePair // by the addresses of it and of its completion queue
}

// acquire returns the device of a context. The caller releases it.
func (s *devices) acquire(ctx deviceContext) (*device, error) {
	d := s.find(ctx)
	d.opening.Lock()
	defer d.opening.Unlock()
	if d.users > 0 && d.gone.Load() && isCutOff(ctx) {
		return nil, deadError(ctx)
	}
	if d.users == 0 {
		d.goRound(s.inline, s.library)
		name := contextName(ctx)
		d.node, d.near = host.Node(name), host.Vectors(name)
		if err := d.open(); err != nil {
			return nil, err
		}
	}
	d.users++
	return d, nil
}

func (s *devices) find(ctx deviceContext) *device {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.of[ctx]
	if d == nil {
		d = &device{ctx: ctx, granted: make(map[shape]int), queuePairs: make(map[*QueuePair]struct{}), byElement: make(map[uint64]*QueuePair)}
		if s.of == nil {
			s.of = make(map[deviceContext]*device)
		}
		s.of[ctx] = d
	}
	return d
}

func (d *device) release() {
	d.opening.Lock()
	defer d.opening.Unlock()
	if d.users--; d.users > 0 {
		return
	}
	d.file.Close()
	<-d.done
}

// open begins to dispatch the device's events. Called with opening held.
func (d *device) open() error {
	switch rc := C.rn_query_device(d.ctx, &d.attr); syscall.Errno(rc) {
	case 0:
	case syscall.EIO:
		return deadError(d.ctx)
	default:
		return syscallError("ibv_query_device", rc)
	}
	fd, err := unix.FcntlInt(uintptr(d.ctx.async_fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	if d.gone.Swap(false) { // another device's context was at this address before
		d.mu.Lock()
		clear(d.granted)
		d.mu.Unlock()
	}
	d.drain(0) // drop events from before it was opened: no queue pair is attached
	d.file = os.NewFile(uintptr(fd), "ibv_async_event")
	raw, err := d.file.SyscallConn()
	if err != nil {
		d.file.Close()
		return err
	}
	d.done = make(chan struct{})
	go func() {
		defer close(d.done)
		for raw.Read(d.drain) == nil {
		}
	}()
	return nil
}

// drain dispatches all pending events. It returns false, so that raw.Read waits for
// more.
func (d *device) drain(uintptr) bool {
	for {
		var event C.struct_rn_ibv_async_event
		switch rc := C.rn_next_async_event(d.ctx, &event); syscall.Errno(rc) {
		case 0:
			d.dispatch(uint32(event.event_type), uint64(event.element))
			C.rn_ack_async_event(&event)
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			// The kernel has cut the device off: there will be no more events.
			d.removed()
			return false
		}
	}
}

// dispatch handles an event that concerns the queue pair or completion queue at
// the address element, or the port whose number is in the same place.
func (d *device) dispatch(kind uint32, element uint64) {
	switch kind {
	case C.RN_IBV_EVENT_CQ_ERR, C.RN_IBV_EVENT_QP_FATAL, C.RN_IBV_EVENT_QP_REQ_ERR, C.RN_IBV_EVENT_QP_ACCESS_ERR:
		if q := d.find(element); q != nil {
			q.ID.notify(fabric.ErrQueuePair, fmt.Errorf("%w (%s)", fabric.ErrQueuePair, eventName[kind]))
		}
	case C.RN_IBV_EVENT_DEVICE_FATAL:
		d.removed()
	case C.RN_IBV_EVENT_PORT_ERR:
		port := int(*(*int32)(unsafe.Pointer(&element)))
		d.forEach(func(q *QueuePair) {
			if q.port == port {
				q.ID.notify(fabric.ErrPortDown, fabric.ErrPortDown)
			}
		})
	}
}

// removed has all queue pairs know that the device is gone.
func (d *device) removed() {
	d.gone.Store(true)
	d.forEach(func(q *QueuePair) { q.ID.notify(fabric.ErrDeviceRemoved, fabric.ErrDeviceRemoved) })
}

// key is the address of a queue pair or completion queue, as events name it.
func key[T any](object *T) uint64 { return uint64(uintptr(unsafe.Pointer(object))) }

func (d *device) attach(q *QueuePair) {
	d.mu.Lock()
	d.queuePairs[q] = struct{}{}
	d.byElement[key(q.qp)] = q
	d.byElement[key(q.cq)] = q
	d.mu.Unlock()
}

// detach is called before the queue pair is destroyed: its address may be used again
// then.
func (d *device) detach(q *QueuePair) {
	d.mu.Lock()
	delete(d.queuePairs, q)
	delete(d.byElement, key(q.qp))
	delete(d.byElement, key(q.cq))
	d.mu.Unlock()
}

func (d *device) find(element uint64) *QueuePair {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byElement[element]
}

func (d *device) forEach(f func(*QueuePair)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.queuePairs {
		f(q)
	}
}

// clamp reduces the depths of the queues to the device's limits.
func (d *device) clamp(send, recv int) (int, int) {
	send = min(send, int(d.attr.max_qp_wr))
	recv = min(recv, int(d.attr.max_qp_wr))
	if cqe := int(d.attr.max_cqe); send+recv > cqe {
		send = max(send*cqe/(send+recv), 1)
		recv = max(cqe-send, 1)
	}
	return send, recv
}

// host is this one. Tests have others.
var host numa.Tree = "/"

// nextVector spreads the completion queues over the device's interrupts: those of the vectors that are wanted, or else
// those near it, or else all.
func (d *device) nextVector(wanted []int) int {
	turn, n := d.vector.Add(1), max(int(d.ctx.num_comp_vectors), 1)
	for _, list := range [][]int{wanted, d.near} {
		there := slices.DeleteFunc(slices.Clone(list), func(v int) bool { return v >= n })
		if len(there) > 0 {
			return there[turn%uint32(len(there))]
		}
	}
	return int(turn % uint32(n))
}
