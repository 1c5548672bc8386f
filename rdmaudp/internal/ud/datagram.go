package ud

import (
	"context"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Fabric makes endpoints. Their ports are apart from those of connections, as UDP's are from
// TCP's.
type Fabric interface {
	// ListenPacket returns an endpoint at local, where port 0 and unspecified
	// addresses mean what they do for [fabric.Fabric].Listen.
	ListenPacket(local netip.AddrPort, o Options) (Endpoint, error)
}

// Options says what an endpoint should be like.
type Options struct {
	// RecvQueue is how many datagrams wait to be received.
	RecvQueue int

	// Receive calls Filter with each datagram, of which all fields are set, but no bytes
	// have been copied to Buffers: they are in Bytes until Filter returns, where the sender
	// may still change them. The endpoint drops those for which Filter returns false.
	Filter func(*Datagram) bool

	// A goroutine of the fabric's calls Notify after [Endpoint].Arm when there
	// may be something to receive, or for no reason. Notify must not block.
	Notify func()

	// The fabric calls Lost once, as it calls Notify, if the endpoint's device is gone
	// for good, so that nothing arrives any more. The error wraps [fabric.ErrDeviceRemoved].
	Lost func(error)
}

// Endpoint sends to any number of others of its kind, and
// receives from them. It has a queue pair for each port of a device that its address belongs to.
//
// Send is called by one goroutine at a time, and so is Receive; the other methods may be
// called at once.
type Endpoint interface {
	LocalAddr() netip.AddrPort

	Limits() Limits

	// SetRecvQueue changes Options.RecvQueue, within the fabric's limits. A
	// fabric may apply it only to senders that it does not know yet.
	SetRecvQueue(n int)

	// Join makes the endpoint a member of a group, a multicast address and a port, at the
	// card of this host that has the address card, or, if card is zero, at the one that
	// datagrams to the group are sent from. Any number of endpoints of a host may be
	// members of a group, and each receives what any endpoint, itself included, sends to
	// the group. If the endpoint is a member at that card already, the error is
	// EADDRINUSE.
	Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error

	// Leave ends a membership; the error is EADDRNOTAVAIL if there is none. Datagrams
	// that have arrived for it may be lost.
	Leave(group netip.AddrPort, card netip.Addr) error

	// Resolve finds out how to reach an address. If no endpoint has the address, the
	// error wraps ECONNREFUSED or is a *[fabric.RejectError], and the fabric does not remember
	// that. A group without members can be reached.
	Resolve(ctx context.Context, to netip.AddrPort) (AddressHandle, error)

	// Send sends the datagrams in order and sets the Status of each. It waits only until
	// the device has sent earlier ones, and keeps no reference to d.
	Send(d []Datagram)

	// Receive takes datagrams that have arrived, as many as d has room for, copies their
	// bytes to Buffers, and returns how many there were. It never waits.
	Receive(d []Datagram) int

	// Arm asks for one call of Notify. What arrived before Arm may give none, so
	// Receive once more after Arm.
	Arm()

	// Close destroys the queue pairs. The caller closes all address handles before.
	Close() error
}

// Limits are those of a [Endpoint].
type Limits struct {
	MaxMessage int // bytes that a datagram may have behind its header
	Spin       int // as [fabric.Limits].Spin
}

// AddressHandle is how an endpoint reaches an address, as verbs' address handles are.
type AddressHandle interface {
	// Close destroys the handle. No Send that uses it may be under way.
	Close()
}

// Datagram is one to send, or room for one to receive.
type Datagram struct {
	Header  [HeaderSize]byte // see [Header]
	Buffers [][]byte

	// To send:
	To AddressHandle

	// Status is OK when the datagram has been sent; it may not arrive all the same.
	// RNRRetryExceeded says that the receiver is known to have no room for it, or for one
	// of this length. Flushed says that To cannot be used any more: the caller resolves
	// the address again.
	Status fabric.Status

	// Received:
	From  netip.AddrPort // port 0; the zero AddrPort if the device does not report it
	Via   Via
	Len   int    // bytes behind the header, also those that did not fit into Buffers
	Bytes []byte // those bytes, for Options.Filter alone
}

// Take passes a datagram that has arrived to a filter, with the bytes behind its header, and
// copies these to Buffers if the filter returns true.
func (d *Datagram) Take(b []byte, filter func(*Datagram) bool) (wanted bool) {
	d.Len, d.Bytes = len(b), b
	wanted = filter(d)
	d.Bytes = nil
	if wanted {
		for _, part := range d.Buffers {
			b = b[copy(part, b):]
		}
	}
	return wanted
}

// Size is how many bytes buffers have.
func Size(buffers [][]byte) (n int) {
	for _, b := range buffers {
		n += len(b)
	}
	return n
}

// Via is the way by which a datagram has come. All that a sender sends by one address
// handle comes by one way, and by two handles by two ways.
type Via struct {
	Queue uint64     // a number of the receive queue; no two of this process have had the same
	To    netip.Addr // the group that it was sent to; an address only if two ways differ in that alone
}
