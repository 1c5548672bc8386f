//go:build linux

package shm

// One end of a connection: what it is made of, and its life from Open to Close.

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/mapping"
)

// spin is the number of polls worth making before waiting for an event. With
// what a caller does around each they take some 100 µs: as long as a processor
// of a virtual machine may take to wake up, and as net/http or gRPC takes to answer
// a request, whose answer then finds the client still polling. With a quarter of
// that, net/http serves a third as many requests.
const spin = 4000

// endpoint implements [fabric.Endpoint].
type endpoint struct {
	f             *shm
	local, remote netip.AddrPort
	mu            sync.Mutex // guards memory, and sock, which renewSocket may replace until it is connected
	sock          *socket
	user          uint32 // of the peer, once it is connected

	calls closer          // for system calls that take as long as the peer makes them
	left  <-chan struct{} // closed when one of these has returned that was not waited for; nil: none was left
	work  sync.WaitGroup  // what Disconnect has begun

	handshake
	opened
	mapped

	failed       atomic.Bool           // the queue pair is in state ERR
	disconnected bool                  // Disconnect has been called
	drained      bool                  // failed, and what had arrived before has been polled
	broken       atomic.Pointer[error] // what Poll returns, once
	sendQueue
	recvQueue

	waiter
	changes fabric.Changes
}

// opened is what Open and Register have made.
type opened struct {
	limits fabric.Limits
	shape  shape // of the own segment
	memory []*memory
	ownRegion
}

// mapped is what the two ends share, from Connect or Accept to Close.
type mapped struct {
	queues []byte // of both ends
	fd     int    // of the memory, while explore or Register needs it, or -1
	own    *segment
	peer   *segment // what this end writes to
	peerRegion
}

var _ fabric.Endpoint = (*endpoint)(nil)

func newEndpoint(f *shm, s *socket, local, remote netip.AddrPort) *endpoint {
	e := &endpoint{f: f, sock: s, local: local, remote: remote, calls: closer{callsOf{of: remote}}, mapped: mapped{fd: -1}}
	e.ready = e.rung
	return e
}

// LocalAddr implements [fabric.Endpoint].
func (e *endpoint) LocalAddr() netip.AddrPort { return e.local }

// RemoteAddr implements [fabric.Endpoint].
func (e *endpoint) RemoteAddr() netip.AddrPort { return e.remote }

// Footprint implements [fabric.Endpoint]. The listener makes the dialer's queues,
// too.
func (e *endpoint) Footprint(o fabric.Options) fabric.Footprint {
	own := shape{recvQueue: min(max(o.RecvQueue, 1), maxRecvQueue), recvSize: o.RecvSize}
	return fabric.Footprint{Receives: own.queues(), Queues: e.MemoryForPeer()}
}

// Open implements [fabric.Endpoint]. Data of any size is inline, since PostSend
// copies it into the peer's memory.
func (e *endpoint) Open(o fabric.Options) (fabric.Limits, error) {
	if e.limits.RecvQueue != 0 || o.SendQueue < 1 || o.RecvQueue < 1 || o.RecvSize < 0 || o.RecvSize > maxBuffers || o.AckTimeout < 0 || o.Retries < 0 || o.Retries > 7 {
		return fabric.Limits{}, fmt.Errorf("open with %+v: %w", o, syscall.EINVAL)
	}
	o.SendQueue = min(o.SendQueue, maxSendQueue)
	o.RecvQueue = min(o.RecvQueue, maxRecvQueue)
	s, err := newShape(uint64(pages(o.RemoteMemory)), rand.Uint32(), uint32(o.RecvQueue), uint32(o.RecvSize))
	if err != nil {
		return fabric.Limits{}, fmt.Errorf("open: %w", err)
	}
	e.shape = s
	e.completions = make([]sendDone, 1<<bits.Len(uint(o.SendQueue-1)))
	e.scratch = make([]byte, 0, scratchMessages*o.RecvSize)
	e.limits = fabric.Limits{
		SendQueue:    o.SendQueue,
		RecvQueue:    o.RecvQueue,
		Inline:       maxMessage,
		SharesMemory: true,
		Spin:         spin,
	}
	return e.limits, nil
}

// MemoryForPeer implements [fabric.Neighbor].
func (e *endpoint) MemoryForPeer() int {
	if !e.passive {
		return 0
	}
	return e.peerShape.queues()
}

// Disconnect implements [fabric.Endpoint]. The peer can still read the memory that
// it has mapped, so what was sent before arrives. Disconnect does not wait for the
// peer: this end's Wait returns ErrDisconnected at once, and a goroutine shuts the socket down, which
// takes as long as the peer has pollers.
func (e *endpoint) Disconnect() error {
	if e.moveToError(); e.disconnected {
		return nil
	}
	e.disconnected = true
	if e.step == established {
		e.notify(fabric.ErrDisconnected, fabric.ErrDisconnected)
	}
	e.work.Go(func() { _ = unix.Shutdown(e.sock.fd, unix.SHUT_RDWR) }) // which fails if the peer has
	return nil
}

// within calls f, which makes system calls that the peer can make long, and waits until ctx ends. Then
// f goes on, and no other may be called: Close leaves what f uses until it has returned.
func (e *endpoint) within(ctx context.Context, f func() error) error {
	over, err := e.calls.within(ctx, f)
	select {
	case <-over:
	default:
		e.left = over
	}
	return err
}

// moveToError moves the queue pair to ERR. Poll returns the messages that have arrived
// before it flushes the other receives.
func (e *endpoint) moveToError() {
	if e.failed.Swap(true) {
		return
	}
	e.wakeIfArmed()
}

// Close implements [fabric.Endpoint].
func (e *endpoint) Close() error {
	switch {
	case e.passive && (e.step == requested || e.step == answered): // the listener has given up, or is closed
		_ = e.sendReject(frame{reason: fabric.RejectConsumer, private: errListenerClosed.Append(nil)})
	case e.step == answered:
		_ = e.sendReject(frame{reason: fabric.RejectConsumer})
	}
	e.work.Wait()
	e.bell.Lock()
	err := e.sock.close()
	e.bell.Unlock()
	if errors.Is(err, os.ErrClosed) {
		return net.ErrClosed
	}
	if e.left != nil {
		go func() {
			<-e.left
			_ = e.free()
		}()
		return err
	}
	return errors.Join(err, e.free())
}

// free unmaps all memory.
func (e *endpoint) free() (err error) {
	e.closeFile()
	err = errors.Join(err, e.unmap())
	for _, m := range e.memory {
		err = errors.Join(err, mapping.Unmap(m.bytes))
	}
	// A use after Close finds nil rather than pages that are another mapping's by
	// then.
	e.queues, e.own, e.peer, e.memory = nil, nil, nil, nil
	e.ownRegion, e.windows = ownRegion{}, nil
	e.window.Store(nil)
	return err
}

// closeFile closes the descriptor of the memory.
func (e *endpoint) closeFile() {
	if e.fd >= 0 {
		unix.Close(e.fd)
		e.fd = -1
	}
}
