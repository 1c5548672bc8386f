package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

// What doctor finds out about the cards over which links go on when they lose their own.

// card is a port of an RDMA device, with the addresses that links use: those that are
// not link-local.
type card struct {
	name      string
	addresses []netip.Prefix // each with its subnet
}

// cardsOf are the ports of the devices that connections can use.
func cardsOf(devices []host.Device) []card {
	var cards []card
	for _, d := range devices {
		for _, p := range d.Ports {
			if !p.Usable() {
				continue
			}
			c := card{name: portName(d, p)}
			for _, a := range p.Addresses() {
				if a.Addr().IsGlobalUnicast() {
					c.addresses = append(c.addresses, a)
				}
			}
			if len(c.addresses) > 0 {
				cards = append(cards, c)
			}
		}
	}
	return cards
}

func portName(d host.Device, p host.Port) string { return fmt.Sprintf("%s port %d", d.Name, p.Number) }

// sharedSubnet is a subnet of IPv4 that both cards are in.
func (c card) sharedSubnet(other card) (subnet netip.Prefix, shared bool) {
	for _, p := range c.addresses {
		for _, q := range other.addresses {
			if p.Addr().Is4() && p.Overlaps(q) {
				return p.Masked(), true
			}
		}
	}
	return netip.Prefix{}, false
}

// checkCards finds out whether the links of this host can go on over another card.
func (d *diagnosis) checkCards(cards []card) {
	if len(cards) == 0 {
		return // there are no links
	}
	names := together(cards)
	if len(names) < 2 {
		d.add(finding{Subject: "cards", Status: note, What: "a link that loses its card waits for it: there is no other with an address of the same family",
			Mend: "ip addr add ADDRESS/LENGTH dev INTERFACE   # that of another RDMA device or port, in a subnet of its own"})
		return
	}
	d.add(finding{Subject: "cards", Status: good,
		What: "a link to a host that has another card, too, goes on over that when it loses its own: " + strings.Join(names, ", ")})
	for i, c := range cards {
		for _, other := range cards[:i] {
			if subnet, shared := c.sharedSubnet(other); shared {
				d.add(finding{Subject: "cards", Status: note,
					What: fmt.Sprintf("%s and %s are both in %v, where either answers ARP for the other's address", other.name, c.name, subnet),
					Mend: "ip addr replace ADDRESS/LENGTH dev INTERFACE   # a subnet of its own for each\nsysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2   # or, if they have to be in one"})
			}
		}
	}
}

// together are the names of the cards that have addresses of one family: of that which
// more cards have.
func together(cards []card) (most []string) {
	for _, family := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		var names []string
		for _, c := range cards {
			if slices.ContainsFunc(c.addresses, func(p netip.Prefix) bool { return family(p.Addr()) }) {
				names = append(names, c.name)
			}
		}
		if len(names) > len(most) {
			most = names
		}
	}
	return most
}
