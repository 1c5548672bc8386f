// A host with several cards.

package sim

import (
	"context"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Host is a host of the network, with some cards. It is a [fabric.Host].
type Host struct {
	*Network
	cards []fabric.Card
}

var _ fabric.Host = (*Host)(nil)

// Host returns a host with the given cards, each of which has an address at least.
func (n *Network) Host(cards ...fabric.Card) *Host { return &Host{n, cards} }

// Cards implements [fabric.Host].
func (h *Host) Cards() []fabric.Card { return h.cards }

// Dial dials from the first card if local does not say from which.
func (h *Host) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	if !local.Addr().IsValid() {
		local = netip.AddrPortFrom(h.cards[0][0], local.Port())
	}
	return h.Network.Dial(ctx, local, remote)
}
