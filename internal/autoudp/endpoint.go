//go:build unix

package autoudp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// Fabric implements [fabric.Datagrams].
type Fabric struct {
	Carriers []Carrier // those that this host has, the better first
}

// Carrier is a way beside UDP.
type Carrier struct {
	Name string // "shm-udp" or "rdma-udp", which a proof is about
	fabric.Datagrams
}

// endpoint implements [fabric.DatagramEndpoint].
type endpoint struct {
	socket   *socket
	carriers []*carrier
	filter   func(*fabric.Datagram) bool
	turn     int             // of Receive
	emptied  time.Time       // when the carriers were last found empty; of the one call of Receive or Wait
	outbox   []func()        // what Receive sends when the carriers' have returned
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	work     sync.WaitGroup // searches

	sending sync.Mutex        // held to send by a carrier, and to close handles; taken before mu
	batch   []fabric.Datagram // of Send

	mu        sync.Mutex // guards what follows, and the routes
	asking    []*proof   // of this end's
	questions []*question
	sources   map[source]*known
}

// carrier is a Carrier at an endpoint's port.
type carrier struct {
	name     string
	endpoint fabric.DatagramEndpoint
	max      int // bytes of a datagram
}

// source is a queue pair that sends by a carrier.
type source struct {
	addr   netip.Addr
	sender uint64 // see fabric.Datagram
	via    fabric.Via
}

// portTries is how many free ports of UDP are tried for one that is free of all carriers, too.
const portTries = 16

// ListenPacket implements [fabric.Datagrams]. A carrier that cannot listen at the port is left out,
// unless the port is for this end to choose.
func (f *Fabric) ListenPacket(local netip.AddrPort, o fabric.DatagramOptions) (fabric.DatagramEndpoint, error) {
	for tries := 1; ; tries++ {
		e, err := f.listen(local, o)
		if err != nil {
			return nil, err
		}
		if local.Port() != 0 || tries == portTries || len(e.carriers) == len(f.Carriers) {
			return e, nil
		}
		_ = e.Close()
	}
}

func (f *Fabric) listen(local netip.AddrPort, o fabric.DatagramOptions) (*endpoint, error) {
	s, err := listenUDP(local, o)
	if err != nil {
		return nil, err
	}
	e := &endpoint{
		socket:  s,
		filter:  o.Filter,
		sources: make(map[source]*known),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	at := netip.AddrPortFrom(local.Addr(), s.local.Port())
	for _, offered := range f.Carriers {
		c := &carrier{name: offered.Name}
		c.endpoint, err = offered.ListenPacket(at, fabric.DatagramOptions{
			RecvQueue: o.RecvQueue,
			Filter:    func(d *fabric.Datagram) bool { return e.receivedByCarrier(c, d) },
			Notify:    s.Wake,
			Lost:      func(error) {}, // its handles end, and UDP is taken
		})
		if err != nil {
			continue
		}
		c.max = c.endpoint.DatagramLimits().MaxMessage
		e.carriers = append(e.carriers, c)
	}
	return e, nil
}

// Source implements [fabric.Datagrams].
func (f *Fabric) Source(remote netip.AddrPort) (netip.Addr, error) { return fabric.SourceOf(remote) }

// LocalAddr implements [fabric.DatagramEndpoint].
func (e *endpoint) LocalAddr() netip.AddrPort { return e.socket.local }

// DatagramLimits implements [fabric.DatagramEndpoint]. What is too long for a carrier goes by UDP.
// Nobody polls: beside a socket that is slower than to sleep.
func (e *endpoint) DatagramLimits() fabric.DatagramLimits {
	return fabric.DatagramLimits{MaxMessage: maxUDP}
}

// SetRecvQueue implements [fabric.DatagramEndpoint].
func (e *endpoint) SetRecvQueue(n int) {
	e.socket.setRecvQueue(n)
	for _, c := range e.carriers {
		c.endpoint.SetRecvQueue(n)
	}
}

var errNoGroups = fmt.Errorf("no groups: %w", errors.ErrUnsupported)

// Join implements [fabric.DatagramEndpoint].
func (e *endpoint) Join(context.Context, netip.AddrPort, netip.Addr) error { return errNoGroups }

// Leave implements [fabric.DatagramEndpoint].
func (e *endpoint) Leave(netip.AddrPort, netip.Addr) error { return syscall.EADDRNOTAVAIL }

// Send implements [fabric.DatagramEndpoint].
func (e *endpoint) Send(ds []fabric.Datagram) {
	e.sending.Lock()
	defer e.sending.Unlock()
	for len(ds) > 0 {
		c, n := e.route(ds)
		if c == nil {
			ds[0].Status = ds[0].To.(*route).sendByUDP(&ds[0])
			ds = ds[1:]
			continue
		}
		c.endpoint.Send(e.batch)
		for i := range e.batch {
			d := &ds[i]
			if d.Status = e.batch[i].Status; d.Status == fabric.Flushed {
				d.To.(*route).carrierEnded(e.batch[i].To)
				d.Status = d.To.(*route).sendByUDP(d)
			}
		}
		clear(e.batch)
		ds = ds[n:]
	}
}

// route returns the carrier by which the first of some datagrams goes, or nil for UDP, and puts
// those into e.batch that go by the same, the first n. Called with sending held.
func (e *endpoint) route(ds []fabric.Datagram) (c *carrier, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.batch = e.batch[:0]
	for i := range ds {
		r := ds[i].To.(*route)
		of := r.carrierFor(&ds[i])
		if i > 0 && of != c || of == nil {
			break
		}
		c, n = of, n+1
		d := fabric.Datagram{To: r.handle, Buffers: ds[i].Buffers}
		wire.DatagramHeader{SourcePort: e.socket.local.Port(), Sequence: r.sequence}.Put(&d.Header)
		r.sequence++
		e.batch = append(e.batch, d)
	}
	return c, n
}

// udpTurn is how often UDP is looked at while datagrams come by carriers, for it is Wait that hears of
// others: once in so many Receives.
const udpTurn = 16

// Receive implements [fabric.DatagramEndpoint]. UDP and the carriers come first in turn.
func (e *endpoint) Receive(ds []fabric.Datagram) (n int) {
	e.turn++
	udp, first := e.socket.readable || e.turn%udpTurn == 0, e.turn%2 == 0
	if udp && first {
		n = e.receiveUDP(ds)
	}
	for i := 0; i < len(e.carriers) && n < len(ds); i++ {
		n += e.carriers[(e.turn+i)%len(e.carriers)].endpoint.Receive(ds[n:])
	}
	if n < len(ds) {
		e.emptied = time.Now()
	}
	if udp && !first {
		n += e.receiveUDP(ds[n:])
	}
	for _, send := range e.outbox {
		send()
	}
	e.outbox = e.outbox[:0]
	return n
}

// receiveUDP is Receive for UDP.
func (e *endpoint) receiveUDP(ds []fabric.Datagram) (n int) {
	for n < len(ds) && e.socket.receive(&ds[n]) {
		if e.receivedByUDP(&ds[n]) && e.filter(&ds[n]) {
			n++
		}
	}
	return n
}

// later has something sent when the carriers' Receives have returned: they may hold locks.
func (e *endpoint) later(send func()) { e.outbox = append(e.outbox, send) }

// sendControl sends a message of a proof by a carrier. Called with sending held.
func (e *endpoint) sendControl(c *carrier, to fabric.AddressHandle, kind wire.ProofKind, b []byte) {
	d := []fabric.Datagram{{To: to, Buffers: [][]byte{b}}}
	wire.ProofHeader{Kind: kind, SourcePort: e.socket.local.Port()}.Put(&d[0].Header)
	c.endpoint.Send(d) // one that is lost is repeated with the proof
}

// Wait implements [fabric.DatagramWaiter].
func (e *endpoint) Wait() {
	e.socket.wait()
	e.emptied = time.Now() // they were empty until now
}

// Wake implements [fabric.DatagramWaiter].
func (e *endpoint) Wake() { e.socket.Wake() }

// Arm implements [fabric.DatagramEndpoint].
func (e *endpoint) Arm() {
	for _, c := range e.carriers {
		c.endpoint.Arm()
	}
}

// Close implements [fabric.DatagramEndpoint].
func (e *endpoint) Close() error {
	e.cancel()
	err := e.socket.Close()
	e.work.Wait()
	for _, c := range e.carriers {
		err = errors.Join(err, c.endpoint.Close())
	}
	return err
}
