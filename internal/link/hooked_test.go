package link

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ringnet/ringnet/internal/fabric"
)

// hooked is a fabric whose endpoints of the dialing side call a test's functions, so that something
// else happens just then. They are set before the link is made, and nil ones are not called.
type hooked struct {
	fabric.Fabric
	sent func() // when completions of sends are polled, with the link's lock held
}

func (f *hooked) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return &hookedEndpoint{ep, f}, err
}

type hookedEndpoint struct {
	fabric.Endpoint
	f *hooked
}

func (e *hookedEndpoint) Leave(m fabric.Memory) error { return e.Endpoint.(fabric.Mover).Leave(m) }
func (e *hookedEndpoint) Adopt(m fabric.Memory) error { return e.Endpoint.(fabric.Mover).Adopt(m) }

func (e *hookedEndpoint) Poll(c []fabric.Completion) (int, error) {
	n, err := e.Endpoint.Poll(c)
	if e.f.sent != nil && slices.ContainsFunc(c[:n], func(c fabric.Completion) bool { return !c.Recv }) {
		e.f.sent()
	}
	return n, err
}
