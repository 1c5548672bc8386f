package link

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// unkind is a fabric whose endpoints let other goroutines run before and after what the holder
// of the watch, and those who wake it, call.
type unkind struct {
	fabric.Fabric
	w *waitWorld
}

func (f *unkind) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return &unkindEndpoint{Endpoint: ep, w: f.w}, err
}

func (f *unkind) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	l, err := f.Fabric.Listen(local, backlog)
	return unkindListener{l, f.w}, err
}

type unkindListener struct {
	fabric.Listener
	w *waitWorld
}

func (l unkindListener) Accept() (fabric.Endpoint, error) {
	ep, err := l.Listener.Accept()
	return &unkindEndpoint{Endpoint: ep, w: l.w}, err
}

// unkindEndpoint also sees that one goroutine waits at a time, and none once it is closed, that
// nothing is disconnected within a post, and that no receive is posted then: not every device flushes
// it.
type unkindEndpoint struct {
	fabric.Endpoint
	w      *waitWorld
	waits  atomic.Int32 // goroutines in Wait
	closed atomic.Bool
	polled atomic.Int64 // when it was last polled
	posts  atomic.Int32 // goroutines in PostSend
	inERR  atomic.Bool  // Disconnect has been called
}

// yield lets other goroutines run. It does not sleep: virtual time stands while a goroutine waits
// for a lock, and that of the link, or of a Read, may be held here.
func yield() {
	if n := rand.IntN(16); n < 8 {
		for range n {
			runtime.Gosched()
		}
	}
}

func (e *unkindEndpoint) Leave(m fabric.Memory) error { return e.Endpoint.(fabric.Mover).Leave(m) }
func (e *unkindEndpoint) Adopt(m fabric.Memory) error { return e.Endpoint.(fabric.Mover).Adopt(m) }

func (e *unkindEndpoint) Arm() error {
	yield()
	defer yield()
	return e.Endpoint.Arm()
}

func (e *unkindEndpoint) Poll(c []fabric.Completion) (int, error) {
	yield()
	defer yield()
	e.polled.Store(time.Now().UnixNano())
	return e.Endpoint.Poll(c)
}

func (e *unkindEndpoint) PostSend(wr []fabric.WorkRequest) error {
	e.posts.Add(1)
	defer e.posts.Add(-1)
	yield()
	defer yield()
	return e.Endpoint.PostSend(wr)
}

func (e *unkindEndpoint) RingDue() bool { return e.w.rings || e.Endpoint.RingDue() }

func (e *unkindEndpoint) Ring() {
	yield()
	e.Endpoint.Ring()
}

func (e *unkindEndpoint) Disconnect() error {
	if e.posts.Load() != 0 {
		e.w.breach("Disconnect during PostSend")
	}
	e.inERR.Store(true)
	return e.Endpoint.Disconnect()
}

func (e *unkindEndpoint) PostRecv(n int) error {
	if e.inERR.Load() {
		e.w.breach("PostRecv after Disconnect")
	}
	return e.Endpoint.PostRecv(n)
}

func (e *unkindEndpoint) Wake() {
	yield()
	defer yield()
	e.Endpoint.Wake()
}

func (e *unkindEndpoint) Wait() error {
	if e.waits.Add(1) != 1 {
		e.w.breach("two Waits at once")
	}
	defer e.waits.Add(-1)
	yield()
	defer yield()
	if e.closed.Load() {
		e.w.breach("Wait on an endpoint that is closed")
	}
	return e.Endpoint.Wait()
}

func (e *unkindEndpoint) Close() error {
	e.closed.Store(true)
	if e.waits.Load() != 0 {
		e.w.breach("Close during Wait")
	}
	return e.Endpoint.Close()
}
