//go:build linux && cgo

package verbs

import (
	"context"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/wire"
)

// rdma implements [fabric.Fabric].
type rdma struct{ cm rdmacore.CM }

var _ fabric.Host = rdma{}

// New returns a fabric. Without RDMA the error wraps errors.ErrUnsupported and names what is missing;
// the next call tries again.
func New(c Config) (fabric.Fabric, error) {
	cm, err := rdmacore.Open(rdmacore.Config{Space: rdmacore.TCP, TrafficClass: c.TrafficClass, Vectors: c.Vectors, Inline: c.Inline})
	if err != nil {
		return nil, err
	}
	return rdma{cm}, nil
}

// Cards implements [fabric.Host].
func (f rdma) Cards() (cards []fabric.Card) {
	for _, addrs := range f.cm.Cards() {
		cards = append(cards, addrs)
	}
	return cards
}

// Dial implements [fabric.Fabric].
func (f rdma) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	id, err := f.cm.Resolve(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return newEndpoint(id), nil
}

// Listen implements [fabric.Fabric].
func (f rdma) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	l, err := f.cm.Listen(local, rdmacore.ListenOptions{
		Backlog: backlog,
		Full:    wire.Full.Append(nil),
		Refusal: func(err error) []byte { return wire.Reject{Reason: err.Error()}.Append(nil) },
	})
	if err != nil {
		return nil, err
	}
	return listener{l}, nil
}

type listener struct{ *rdmacore.Listener }

// Accept implements [fabric.Listener].
func (l listener) Accept() (fabric.Endpoint, error) {
	id, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	e := newEndpoint(id)
	e.contacted = true
	e.private = e.out.parse(id.Private(), fabric.MaxConnectData)
	return e, nil
}
