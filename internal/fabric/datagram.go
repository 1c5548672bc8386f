package fabric

import (
	"context"
	"net/netip"
)

// Datagrams is a Fabric that has unreliable datagrams as well as connections: what
// verbs does with queue pairs of type UD. Their ports are apart from those of
// connections, as UDP's are from TCP's.
type Datagrams interface {
	// ListenPacket returns a queue pair at local, where port 0 and unspecified
	// addresses mean what they do for [Fabric].Listen.
	ListenPacket(local netip.AddrPort, o DatagramOptions) (DatagramEndpoint, error)

	// Source is the address of this host that datagrams to another come from, where
	// local is unspecified.
	Source(remote netip.AddrPort) (netip.Addr, error)
}

// DatagramOptions says what a queue pair for datagrams should be like.
type DatagramOptions struct {
	// RecvQueue is how many datagrams wait to be received; a fabric whose queue pairs
	// have a receive queue for each sender has as many for each.
	RecvQueue int

	// Filter is called by Receive with each datagram, of which all is known but the
	// bytes behind the header. The endpoint drops those that it returns false for.
	Filter func(*Datagram) bool

	// Notify is called after [DatagramEndpoint].Arm when there may be something to
	// receive, by a goroutine of the fabric's, which must not be kept waiting. It may
	// be called for no reason.
	Notify func()

	// Lost is called once, as Notify is, if the endpoint's device has gone for good, so
	// that nothing will arrive any more: the error wraps [ErrDeviceRemoved].
	Lost func(error)
}

// HeaderSize is how many bytes of each datagram a [Datagram] has apart.
const HeaderSize = 8

// DatagramEndpoint is a queue pair that sends to any number of others of its kind, and
// receives from them.
//
// Send is called by one goroutine at a time, and so is Receive, all others by any.
type DatagramEndpoint interface {
	LocalAddr() netip.AddrPort

	DatagramLimits() DatagramLimits

	// SetRecvQueue changes DatagramOptions.RecvQueue, within what the fabric has. It may
	// do so for senders only that are not known yet.
	SetRecvQueue(n int)

	// Join has the endpoint receive what is sent to a group, a multicast address and a
	// port, at the card of this host that has an address; the zero Addr stands for the one
	// that datagrams to the group are sent from. Any number of endpoints of a host may
	// join the same group, and each receives what is sent there, itself included. To
	// join what has been joined at that card is EADDRINUSE.
	Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error

	// Leave ends that: EADDRNOTAVAIL if it has not been so. What has arrived may be
	// lost.
	Leave(group netip.AddrPort, card netip.Addr) error

	// Resolve finds out how to reach an address. Nothing is kept of an address
	// that nobody is found at, for which the error wraps ECONNREFUSED or is a
	// *[RejectError]. A group can be reached though it has no members.
	Resolve(ctx context.Context, to netip.AddrPort) (AddressHandle, error)

	// Send sends the datagrams in order and sets the Status of each. It waits for
	// nothing but the device to send what it was given before, and keeps no
	// reference to them.
	Send(d []Datagram)

	// Receive takes datagrams that have arrived, as many as d has room for, and says
	// how many; it never waits. Their bytes are copied to Buffers.
	Receive(d []Datagram) int

	// Arm asks for one call of Notify. What arrived before Arm may give none, so
	// Receive once more after Arm.
	Arm()

	// Close gives everything back. Handles are to be closed before.
	Close() error
}

// DatagramLimits are those of a [DatagramEndpoint].
type DatagramLimits struct {
	MaxMessage int // bytes that a datagram may have behind its header
	Spin       int // as [Limits].Spin
}

// AddressHandle is how to reach an address, as verbs' address handles are.
type AddressHandle interface {
	// Close gives the handle back, of which no Send may be under way.
	Close()
}

// Datagram is one to send, or room for one to receive.
type Datagram struct {
	Header  [HeaderSize]byte
	Buffers [][]byte

	// To send:
	To AddressHandle

	// Status is OK when a datagram has been sent, which says nothing of its arrival.
	// RNRRetryExceeded says that the receiver has no room for it, or not for one of
	// this length, where that is known, and Flushed that To is of no use any more: the
	// address is to be resolved again.
	Status Status

	// Received:
	From netip.AddrPort // port 0, or the zero AddrPort, where the device does not tell
	Via  Via
	Len  int // bytes behind the header, be there room for them or not
}

// Via is the way by which a datagram has come. What a sender sends by one address handle
// comes by one way as long as the receiver is there, and what it sends by two of them by
// two.
type Via struct {
	Queue uint64     // which of all receive queues that there have been in this process
	To    netip.Addr // where it was sent: a group, or an address where that tells more
}
