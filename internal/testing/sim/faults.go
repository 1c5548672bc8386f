// What a test can break, and when.

package sim

import (
	"errors"
	"maps"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Message is a message of the connection manager.
type Message int

const (
	REQ  Message = iota // Connect
	REP                 // Accept
	RTU                 // Confirm
	REJ                 // Reject, and Close before the connection is established
	DREQ                // Disconnect, and Close
	DREP                // Disconnect and Close, after the peer's DREQ
)

// Faults are functions that the network calls before it does what they are named after.
// Those that are nil change nothing. They may be called at once for several connections.
// They must not block, except for Close, Open and Register, and must not call methods of an
// endpoint but LocalAddr and RemoteAddr.
type Faults struct {
	// Close is called before an endpoint is closed, and may block.
	Close func(e *Endpoint)

	// If one of these returns an error, so does the method. Open and Register may block.
	Open       func(e *Endpoint) error
	Register   func(e *Endpoint, n int) error
	PostRecv   func(e *Endpoint, n int) error
	PostSend   func(e *Endpoint, wr []fabric.WorkRequest) error
	Disconnect func(e *Endpoint) error // which leaves the queue pair as it is, then

	// Send returns the status of a request. Unless that is OK, the request does not
	// reach the peer's memory or queues, and completes when the acknowledgement would
	// have arrived.
	Send func(e *Endpoint, wr *fabric.WorkRequest) fabric.Status

	// Unflushed is called when the queue pair goes to ERR, and reports whether it does
	// not flush what is posted, as that of a device in internal error does not.
	Unflushed func(e *Endpoint) bool

	// Lose reports whether a message of the connection manager that e sends is lost,
	// with all its repetitions.
	Lose func(e *Endpoint, m Message) bool
}

// SetFaults replaces the faults.
func (n *Network) SetFaults(f Faults) { n.faults.Store(&f) }

// severed reports whether nothing gets from one card to another.
func (n *Network) severed(a, b netip.Addr) bool {
	cut := *n.cables.Load()
	return cut[netip.Addr{}] || cut[a] || cut[b]
}

// Cut cuts all cables, or mends those that it has cut. What would arrive meanwhile is lost.
func (n *Network) Cut(cut bool) { n.CutCard(netip.Addr{}, cut) }

// CutCard cuts the cable of the card with an address, or mends it.
func (n *Network) CutCard(a netip.Addr, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	cards := map[netip.Addr]bool{}
	maps.Copy(cards, *n.cables.Load())
	cards[a.Unmap()] = cut
	n.cables.Store(&cards)
}

// Blackhole makes an address swallow the requests of the connection manager.
func (n *Network) Blackhole(a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holes[a.Unmap()] = true
}

// PortDown makes Wait of every endpoint return [fabric.ErrPortDown]. It does not cut the
// cable: Cut does.
func (n *Network) PortDown() {
	for _, e := range n.Endpoints() {
		e.Fail(fabric.ErrPortDown)
	}
}

// RemoveDevice takes the device away from every endpoint, for good.
func (n *Network) RemoveDevice() {
	n.gone.Store(true)
	for _, e := range n.Endpoints() {
		e.Fail(fabric.ErrDeviceRemoved)
	}
}

// Cut cuts, or mends, the cable of this connection alone.
func (e *Endpoint) Cut(cut bool) { e.c.cut.Store(cut) }

// Fail makes Wait return err. Unless that is about the path alone, the queue
// pair goes to ERR too, and [fabric.ErrDeviceRemoved] ends Connect and Accept.
func (e *Endpoint) Fail(err error) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.closed {
		return
	}
	if !fabric.MayGoOn(err) && !errors.Is(err, fabric.ErrPathLost) {
		e.fail()
	}
	if errors.Is(err, fabric.ErrDeviceRemoved) {
		e.settle(err)
	}
	e.change(err)
}

// Kill does what the kernel does when a process dies: the queue pair goes to ERR, and the
// peer is told as by Disconnect, or refused. The owner, which closes the endpoint, gets
// ErrDisconnected.
func (e *Endpoint) Kill() {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if e.closed {
		return
	}
	e.fail()
	e.part()
	e.disconnected()
}

// Established reports whether both sides have agreed to the connection, though one of
// them may have left it since.
func (e *Endpoint) Established() bool {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	return e.agreed()
}

// HoldSends holds back the completions of sends, or lets them go.
func (e *Endpoint) HoldSends(hold bool) { e.hold(sendSide, hold) }

// HoldReceives holds back the completions of receives, or lets them go.
func (e *Endpoint) HoldReceives(hold bool) { e.hold(recvSide, hold) }

func (e *Endpoint) hold(side int, hold bool) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.late[side].held = hold
	e.release(side)
}
