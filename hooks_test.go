package ringnet

import (
	"context"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
)

// hooked is a fabric with hooks at calls of it, of its listeners, and of the endpoints that
// it dials. A hook gets the call, and makes it or not; where a hook is nil the call is made.
type hooked struct {
	fabric.Fabric
	dial    func()
	listen  func(call func() (fabric.Listener, error)) (fabric.Listener, error)
	accept  func(call func() (fabric.Endpoint, error)) (fabric.Endpoint, error)
	close   func(call func() error) error // of a listener
	connect func(call func() ([]byte, error)) ([]byte, error)
	confirm func(call func() error) error
	ring    func() // when the peer is to be woken, behind each post
}

func (f *hooked) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	if f.dial != nil {
		f.dial()
	}
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return hookedEndpoint{ep, f}, err
}

func (f *hooked) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	l, err := hook(f.listen, func() (fabric.Listener, error) { return f.Fabric.Listen(local, backlog) })
	return hookedListener{l, f}, err
}

type hookedListener struct {
	fabric.Listener
	f *hooked
}

func (l hookedListener) Accept() (fabric.Endpoint, error) {
	return hook(l.f.accept, l.Listener.Accept)
}

func (l hookedListener) Close() error { return hookError(l.f.close, l.Listener.Close) }

type hookedEndpoint struct {
	fabric.Endpoint
	f *hooked
}

func (e hookedEndpoint) Connect(ctx context.Context, private []byte) ([]byte, error) {
	return hook(e.f.connect, func() ([]byte, error) { return e.Endpoint.Connect(ctx, private) })
}

func (e hookedEndpoint) Confirm() error { return hookError(e.f.confirm, e.Endpoint.Confirm) }

func (e hookedEndpoint) RingDue() bool { return e.f.ring != nil || e.Endpoint.RingDue() }

func (e hookedEndpoint) Ring() {
	if e.f.ring != nil {
		e.f.ring()
	}
	e.Endpoint.Ring()
}

func hook[T any](h func(func() (T, error)) (T, error), call func() (T, error)) (T, error) {
	if h == nil {
		return call()
	}
	return h(call)
}

func hookError(h func(func() error) error, call func() error) error {
	if h == nil {
		return call()
	}
	return h(call)
}
