//go:build linux

package shm

// Groups, whose datagrams are numbered as in section 12.3 of docs/protocol.md. A sender has a
// lane to each member of a group, so no member holds up another, or the sender.
//
// Members and senders find each other by the names of their sockets, which the kernel
// lists, and forgets with their processes. Each takes its name first and then looks for
// the others: a new sender connects to the members; a new member knocks at the senders,
// which then look for members again. So whichever comes second finds the other.

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Join implements [fabric.DatagramEndpoint]. All cards reach the same members: to join a
// group at a second one matters only once it is left at the first.
func (d *datagrams) Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error {
	group = fabric.Plain(group)
	if err := d.addCard(group, card); err != nil {
		return err
	}
	if err := d.knock(ctx, group); err != nil {
		_ = d.Leave(group, card)
		return err
	}
	return nil
}

// addCard makes the queue pair a member of a group at a card.
func (d *datagrams) addCard(group netip.AddrPort, card netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inlets == nil {
		return net.ErrClosed
	}
	if in := d.inletOf(group); in != nil {
		if slices.Contains(in.cards, card) {
			return syscall.EADDRINUSE
		}
		in.cards = append(in.cards, card)
		return nil
	}
	f := d.f.naming(memberName)
	s, err := f.listenBy(f.randomName(group))
	if err != nil {
		return err
	}
	d.open(&inlet{listener: f.newListener(s, group, maxRequests, nil), group: group, cards: []netip.Addr{card}})
	return nil
}

// inletOf returns the inlet of a group, or nil. Called with mu held.
func (d *datagrams) inletOf(group netip.AddrPort) *inlet {
	for _, in := range d.inlets {
		if in.group == group {
			return in
		}
	}
	return nil
}

// knock connects to each sender to a group and hangs up, for which the sender looks for
// members. One whose queue of knocks is full is going to look anyway.
func (d *datagrams) knock(ctx context.Context, group netip.AddrPort) error {
	senders, _, err := d.f.naming(senderName).trustedListeners(ctx, group)
	if err != nil {
		return err
	}
	for _, name := range senders[:min(len(senders), maxSources)] {
		if _, err := listenerUser(name); exhausted(err) {
			return err
		}
	}
	return nil
}

// Leave implements [fabric.DatagramEndpoint].
func (d *datagrams) Leave(group netip.AddrPort, card netip.Addr) error {
	in, left := d.removeCard(fabric.Plain(group), card)
	if !left {
		return syscall.EADDRNOTAVAIL
	}
	if in == nil {
		return nil
	}
	return in.listener.Close()
}

// removeCard removes a card from a group. With the last it ends the group's sources, and
// removes and returns the inlet. left is false if the group was not joined at the card.
func (d *datagrams) removeCard(group netip.AddrPort, card netip.Addr) (in *inlet, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in = d.inletOf(group)
	if in == nil || !slices.Contains(in.cards, card) {
		return nil, false
	}
	in.cards = slices.DeleteFunc(in.cards, func(c netip.Addr) bool { return c == card })
	if len(in.cards) > 0 {
		return nil, true
	}
	d.inlets = slices.DeleteFunc(d.inlets, func(other *inlet) bool { return other == in })
	for _, s := range d.sources {
		if s.in == in {
			s.end()
		}
	}
	return in, true
}
