package rconn_test

import (
	"context"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// hooked is a fabric with a hook at each PostSend of its endpoints. The hook gets the call, and
// makes it or not.
type hooked struct {
	fabric.Fabric
	postSend func(call func() error) error
}

// slow returns a fabric whose PostSend takes a while, as soft-RoCE's does, in real time.
func slow(f fabric.Fabric) *hooked {
	return &hooked{f, func(post func() error) error {
		err := post()
		for start := time.Now(); time.Since(start) < 20*time.Microsecond; {
		}
		return err
	}}
}

func (f *hooked) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return hookedEndpoint{ep, f}, err
}

func (f *hooked) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	l, err := f.Fabric.Listen(local, backlog)
	return hookedListener{l, f}, err
}

type hookedListener struct {
	fabric.Listener
	f *hooked
}

func (l hookedListener) Accept() (fabric.Endpoint, error) {
	ep, err := l.Listener.Accept()
	return hookedEndpoint{ep, l.f}, err
}

type hookedEndpoint struct {
	fabric.Endpoint
	f *hooked
}

func (e hookedEndpoint) PostSend(wr []fabric.WorkRequest) error {
	return e.f.postSend(func() error { return e.Endpoint.PostSend(wr) })
}
