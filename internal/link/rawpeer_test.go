package link

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// Peers that break the protocol are endpoints driven by hand. breaches_test.go has what ends a
// link, hostile_test.go what does not, hello_test.go how links do not begin, and
// hostile_resume_test.go what comes back to one.

// rawPeer is the hand-driven end of a link.
type rawPeer struct {
	t    *testing.T
	n    *sim.Network
	ep   fabric.Endpoint
	ring fabric.Memory
	out  fabric.Memory
	peer wire.RingPlace // that of the first stream at the other end
	s    *Stream        // that stream, and who takes others
	b    *backlog
	sent int           // SENDs, each with a place of its own in the second half of out
	got  []wire.Record // in SENDs

	polled wire.Header // what it acknowledges with each SEND
	deaf   bool        // it acknowledges nothing
}

const rawReceives = 64

func openRaw(t *testing.T, ep fabric.Endpoint) *rawPeer {
	p := &rawPeer{t: t, ep: ep}
	_, err := ep.Open(fabric.Options{SendQueue: 64, RecvQueue: rawReceives + credit.LinkControlReceives,
		RecvSize: wire.MessageSize, Sends: credit.LinkControlReceives, AckTimeout: testConfig.AckTimeout, Retries: testConfig.Retries})
	require.NoError(t, err)
	p.ring, err = ep.Register(64<<10, fabric.RemoteWrite)
	require.NoError(t, err)
	p.out, err = ep.Register(1<<20, fabric.LocalWrite)
	require.NoError(t, err)
	require.NoError(t, ep.PostRecv(rawReceives+credit.LinkControlReceives))
	return p
}

func (p *rawPeer) place() wire.RingPlace {
	return wire.RingPlace{Addr: p.ring.Addr(), RKey: p.ring.RKey(), Size: wire.MinRing}
}

func (p *rawPeer) hello(typ credit.Record) []byte { return p.helloWith(typ, 0) }

func (p *rawPeer) helloWith(typ credit.Record, features wire.Features) []byte {
	b := append(wire.Hello{Features: features, Receives: rawReceives}.Append(nil), make([]byte, wire.RecordSize)...)
	wire.Record{Type: typ, Ring: p.place()}.Put(b[wire.HelloSize:])
	return b
}

func (p *rawPeer) meet(private []byte) {
	_, r, err := wire.DecodeHello(private)
	require.NoError(p.t, err)
	p.peer = r.Ring
}

// control sends records.
func (p *rawPeer) control(records ...wire.Record) {
	header := wire.Header{}
	if !p.deaf {
		header = p.polled
	}
	p.send(encoded(header, records...))
}

// acknowledge sends link credit.
func (p *rawPeer) acknowledge(data, records uint64) {
	p.send(encoded(wire.Header{Data: data, Records: records}))
}

// encoded is a SEND with records.
func encoded(header wire.Header, records ...wire.Record) []byte {
	b := make([]byte, wire.HeaderSize+len(records)*wire.RecordSize)
	header.Put(b)
	for i, r := range records {
		r.Put(b[wire.HeaderSize+i*wire.RecordSize:])
	}
	return b
}

// send sends a message, or bytes that are none.
func (p *rawPeer) send(b []byte) { p.post(p.sending(b)) }

func (p *rawPeer) sending(b []byte) fabric.WorkRequest {
	at := p.out.Bytes()[len(p.out.Bytes())/2+p.sent%1000*wire.MessageSize:]
	p.sent++
	return fabric.WorkRequest{Op: fabric.Send, Data: at[:copy(at, b)], Memory: p.out}
}

// data sends n bytes for a stream, wherever its ring is: into that of the first.
func (p *rawPeer) data(stream uint32, n int) {
	wr := p.write(p.peer.Addr, p.peer.RKey, n)
	wr.Op, wr.Imm = fabric.WriteImm, stream
	p.post(wr)
}

func (p *rawPeer) write(addr uint64, rkey uint32, n int) fabric.WorkRequest {
	return fabric.WorkRequest{Op: fabric.Write, Data: p.out.Bytes()[:n], Memory: p.out, RemoteAddr: addr, RKey: rkey}
}

// post posts work requests, and ignores whether they succeed.
func (p *rawPeer) post(wr ...fabric.WorkRequest) {
	for i := range wr {
		wr[i].Signaled = true
	}
	_ = p.ep.PostSend(wr)
	p.poll()
}

// poll takes what has come.
func (p *rawPeer) poll() {
	var c [64]fabric.Completion
	for {
		n, err := p.ep.Poll(c[:])
		if n == 0 || err != nil {
			return
		}
		received := 0
		for _, wc := range c[:n] {
			if !wc.Recv || wc.Status != fabric.OK {
				continue
			}
			received++
			if wc.Op == fabric.WriteImm {
				p.polled.Data++
			} else {
				_, records, err := wire.DecodeHeader(wc.Data)
				require.NoError(p.t, err)
				if len(records) > 0 {
					p.polled.Records++
				}
				for ; len(records) > 0; records = records[wire.RecordSize:] {
					r, err := wire.DecodeRecord(records[:wire.RecordSize])
					require.NoError(p.t, err)
					p.got = append(p.got, r)
				}
			}
		}
		if received > 0 {
			_ = p.ep.PostRecv(received)
		}
	}
}

// last is the last record that has come of a type.
func (p *rawPeer) last(typ credit.Record) wire.Record {
	synctest.Wait()
	p.poll()
	for _, r := range slices.Backward(p.got) {
		if r.Type == typ {
			return r
		}
	}
	require.Fail(p.t, "no such record", "%v among %v", typ, p.got)
	return wire.Record{}
}

// record is a record with nothing but a stream.
func record(typ credit.Record, stream uint32) wire.Record {
	return wire.Record{Type: typ, Stream: stream}
}

// Records of the link's first stream.
func creditOf(n uint64) wire.Record { return wire.Record{Type: credit.CreditRecord, Position: n} }
func finAt(n uint64) wire.Record    { return wire.Record{Type: credit.FinRecord, Position: n} }
func resetAt(n uint64) wire.Record  { return wire.Record{Type: credit.ResetRecord, Position: n} }

var (
	finAck  = record(credit.FinAckRecord, 0)
	goodbye = record(credit.GoAwayRecord, 0)
)

// open is a request for a stream, whose port no other's has.
func (p *rawPeer) open(stream uint32) wire.Record {
	return wire.Record{Type: credit.OpenRecord, Stream: stream, Ring: p.place(), Port: uint16(20000 + stream)}
}

func (p *rawPeer) accept(stream uint32) wire.Record {
	return wire.Record{Type: credit.AcceptRecord, Stream: stream, Ring: p.place()}
}

func (p *rawPeer) refuse(stream uint32) wire.Record {
	return wire.Record{Type: credit.RefuseRecord, Stream: stream, Reason: wire.RefusedBacklog}
}

func (p *rawPeer) offer(stream uint32, size int) wire.Record {
	place := p.place()
	place.Size = size
	return wire.Record{Type: credit.RingRecord, Stream: stream, Ring: place}
}

// onNetwork runs a test in virtual time on a network with a listener. In the end nothing may be
// left.
func onNetwork(t *testing.T, network sim.Link, test func(t *testing.T, n *sim.Network, l fabric.Listener)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(network)
		l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
		require.NoError(t, err)
		test(t, n, l)
		require.NoError(t, l.Close())
		requireNothingLeft(t, n)
	})
}

// accepting has the next request to a listener be served, and returns the error of that.
func accepting(l fabric.Listener, serve func(ep fabric.Endpoint) error) <-chan error {
	served := make(chan error, 1)
	go func() {
		ep, err := l.Accept()
		if err == nil {
			err = serve(ep)
		}
		served <- err
	}()
	return served
}

// besideAPeer runs a test with a link to a peer that is driven by hand, and that has dialed or
// was dialed.
func besideAPeer(t *testing.T, dials bool, cfg Setup, test func(t *testing.T, p *rawPeer)) {
	onNetwork(t, sim.Link{}, func(t *testing.T, n *sim.Network, l fabric.Listener) {
		var p *rawPeer
		var s *Stream
		b := newBacklog()
		cfg.Acceptor, cfg.Addresses = b, new(Addresses)
		listen := func(ep fabric.Endpoint) (err error) {
			_, s, err = Accept(t.Context(), ep, cfg)
			return err
		}
		dial := func(ep fabric.Endpoint) error {
			p = openRaw(t, ep)
			p.connect(p.hello(credit.OpenRecord))
			return nil
		}
		if !dials {
			listen = func(ep fabric.Endpoint) error {
				p = openRaw(t, ep)
				p.meet(ep.Private())
				return ep.Accept(t.Context(), p.hello(credit.AcceptRecord))
			}
			dial = func(ep fabric.Endpoint) (err error) {
				s, err = Dial(t.Context(), ep, cfg)
				return err
			}
		}
		served := accepting(l, listen)
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		require.NoError(t, dial(ep))
		require.NoError(t, <-served)
		p.n, p.s, p.b = n, s, b
		test(t, p)
		for len(b.came) > 0 {
			_ = b.accept().Close(0)
		}
		_ = s.Close(0)
		_ = p.ep.Close()
	})
}

// connect makes a link with a request, and returns the answer.
func (p *rawPeer) connect(request []byte) (answer []byte) {
	answer, err := p.ep.Connect(p.t.Context(), request)
	require.NoError(p.t, err)
	p.meet(answer)
	require.NoError(p.t, p.ep.Confirm())
	return answer
}

type opened struct {
	s   *Stream
	err error
}

// dialing opens a stream in the background.
func dialing(ctx context.Context, l *Link) <-chan opened {
	c := make(chan opened, 1)
	go func() {
		s, err := l.Open(ctx)
		c <- opened{s, err}
	}()
	synctest.Wait()
	return c
}
