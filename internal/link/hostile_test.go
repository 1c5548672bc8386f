package link

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// Peers that break the protocol: endpoints driven by hand. breaches_test.go has what ends a link,
// and hostile_resume_test.go what comes back to one.

// rawPeer is the hand-driven end of a link.
type rawPeer struct {
	t    *testing.T
	n    *sim.Network
	ep   fabric.Endpoint
	ring fabric.Memory
	out  fabric.Memory
	peer wire.RingPlace // that of the first stream at the other end
	sent int            // SENDs, each with a place of its own in the second half of out
	got  []wire.Record  // in SENDs

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

// onNetwork runs a test in virtual time on an instant network with a listener. In the end nothing
// may be left.
func onNetwork(t *testing.T, test func(t *testing.T, n *sim.Network, l fabric.Listener)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
		require.NoError(t, err)
		test(t, n, l)
		require.NoError(t, l.Close())
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
		require.Zero(t, inUse(testConfig.Budget), "memory left in use")
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

// besideARawListener runs a test with a link to a listener that is driven by
// hand.
func besideARawListener(t *testing.T, test func(t *testing.T, first *Stream, p *rawPeer)) {
	besideARawListenerWith(t, testConfig, test)
}

func besideARawListenerWith(t *testing.T, cfg Setup, test func(t *testing.T, first *Stream, p *rawPeer)) {
	onNetwork(t, func(t *testing.T, n *sim.Network, l fabric.Listener) {
		var p *rawPeer
		served := accepting(l, func(ep fabric.Endpoint) error {
			p = openRaw(t, ep)
			p.meet(ep.Private())
			return ep.Accept(t.Context(), p.hello(credit.AcceptRecord))
		})
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		s, err := Dial(t.Context(), ep, cfg)
		require.NoError(t, err)
		require.NoError(t, <-served)
		p.n = n
		test(t, s, p)
		_ = s.Close(0)
		_ = p.ep.Close()
	})
}

// besideARawDialer is the same with the sides changed. The backlog takes what
// streams the peer opens.
func besideARawDialer(t *testing.T, test func(t *testing.T, first *Stream, p *rawPeer, b *backlog)) {
	besideARawDialerWith(t, testConfig, test)
}

func besideARawDialerWith(t *testing.T, cfg Setup, test func(t *testing.T, first *Stream, p *rawPeer, b *backlog)) {
	onNetwork(t, func(t *testing.T, n *sim.Network, l fabric.Listener) {
		b := newBacklog()
		cfg.Acceptor, cfg.Addresses = b, new(Addresses)
		var s *Stream
		served := accepting(l, func(ep fabric.Endpoint) (err error) {
			_, s, err = Accept(t.Context(), ep, cfg)
			return err
		})
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		p := openRaw(t, ep)
		answer, err := ep.Connect(t.Context(), p.hello(credit.OpenRecord))
		require.NoError(t, err)
		p.meet(answer)
		require.NoError(t, ep.Confirm())
		require.NoError(t, <-served)
		p.n = n
		test(t, s, p, b)
		_ = s.Close(0)
		_ = p.ep.Close()
	})
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

func record(typ credit.Record, stream uint32) wire.Record {
	return wire.Record{Type: typ, Stream: stream}
}

// What may not come for a stream that has not been answered ends the link, for
// the first stream as well.
func TestAStreamIsAnsweredBeforeAnythingElse(t *testing.T) {
	for name, test := range map[string]struct {
		says string
		do   func(p *rawPeer, stream uint32)
	}{
		"data":   {"data on a stream that is opening", func(p *rawPeer, n uint32) { p.data(n, 5) }},
		"CREDIT": {"CREDIT for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(credit.CreditRecord, n)) }},
		"FIN":    {"FIN for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(credit.FinRecord, n)) }},
		"RESET":  {"RESET for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(credit.ResetRecord, n)) }},
		"FINACK": {"FINACK for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(credit.FinAckRecord, n)) }},
		"RING": {"RING for a stream that is opening", func(p *rawPeer, n uint32) {
			p.control(wire.Record{Type: credit.RingRecord, Stream: n, Ring: p.place()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
				dial := dialing(context.Background(), first.Link())
				test.do(p, p.last(credit.OpenRecord).Stream)
				o := <-dial
				require.ErrorIs(t, o.err, syscall.EPROTO)
				require.ErrorContains(t, o.err, test.says)
				_, err := first.Read(make([]byte, 1), deadline.New())
				require.ErrorIs(t, err, syscall.EPROTO)
			})
		})
	}
}

// A peer that would make a stream where none was asked for, or none of one, is
// told so before it has any.
func TestAnAnswerIsAboutWhatWasAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		empty  bool
		answer wire.Features
	}{
		"a side that does not know of links without a stream": {true, 0},
		"no stream for the one that was asked for":            {false, wire.Empty},
	} {
		t.Run(name, func(t *testing.T) {
			onNetwork(t, func(t *testing.T, n *sim.Network, l fabric.Listener) {
				answered := accepting(l, func(ep fabric.Endpoint) error {
					defer ep.Close()
					return ep.Accept(t.Context(), openRaw(t, ep).helloWith(credit.AcceptRecord, c.answer))
				})
				ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
				require.NoError(t, err)
				if c.empty {
					_, err = DialEmpty(t.Context(), ep, testConfig)
				} else {
					_, err = Dial(t.Context(), ep, testConfig)
				}
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorAs(t, <-answered, new(*fabric.RejectError))
			})
		})
	}
}

func TestALinkWithoutAStreamWantsSomebodyWhoTakesStreams(t *testing.T) {
	for name, c := range map[string]struct {
		features wire.Features
		acceptor Acceptor
	}{
		"nobody takes streams":           {wire.Empty, nil},
		"dedicated to a stream and none": {wire.Empty | wire.Dedicated, newBacklog()},
	} {
		t.Run(name, func(t *testing.T) {
			onNetwork(t, func(t *testing.T, n *sim.Network, l fabric.Listener) {
				accepted := accepting(l, func(ep fabric.Endpoint) error {
					cfg := testConfig
					cfg.Acceptor = c.acceptor
					_, _, err := Accept(t.Context(), ep, cfg)
					return err
				})
				ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
				require.NoError(t, err)
				_, err = ep.Connect(t.Context(), openRaw(t, ep).helloWith(credit.OpenRecord, c.features))
				var rejected *fabric.RejectError
				require.ErrorAs(t, err, &rejected)
				require.Contains(t, wire.DecodeReject(rejected.Private).Reason, "a link without a stream")
				require.ErrorIs(t, <-accepted, syscall.EPROTO)
				require.NoError(t, ep.Close())
			})
		})
	}
}

func TestAStreamIsAnsweredOnce(t *testing.T) {
	accept := func(p *rawPeer, n uint32) wire.Record {
		return wire.Record{Type: credit.AcceptRecord, Stream: n, Ring: p.place()}
	}
	refuse := func(_ *rawPeer, n uint32) wire.Record {
		return wire.Record{Type: credit.RefuseRecord, Stream: n, Reason: wire.RefusedBacklog}
	}
	type answer = func(p *rawPeer, n uint32) wire.Record
	for name, test := range map[string]struct {
		first, second answer
		says          string
	}{
		"ACCEPT, ACCEPT": {accept, accept, "ACCEPT for a stream that is open"},
		"ACCEPT, REFUSE": {accept, refuse, "REFUSE for a stream that is open"},
		"REFUSE, ACCEPT": {refuse, accept, "ACCEPT: there is no stream 1"},
		"REFUSE, REFUSE": {refuse, refuse, "REFUSE: there is no stream 1"},
	} {
		t.Run(name, func(t *testing.T) {
			besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
				dial := dialing(context.Background(), first.Link())
				n := p.last(credit.OpenRecord).Stream
				p.control(test.first(p, n), test.second(p, n))
				_, err := first.Read(make([]byte, 1), deadline.New())
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorContains(t, err, test.says)
				if o := <-dial; o.err == nil {
					_ = o.s.Close(0)
				}
			})
		})
	}
}

// A dial that is given up keeps its number until the answer, and answers ACCEPT
// with RESET.
func TestADialThatIsGivenUpKeepsItsNumber(t *testing.T) {
	besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
		ctx, cancel := context.WithCancel(context.Background())
		dial := dialing(ctx, first.Link())
		given := p.last(credit.OpenRecord).Stream
		cancel()
		require.ErrorIs(t, (<-dial).err, context.Canceled)

		next := dialing(context.Background(), first.Link())
		n := p.last(credit.OpenRecord).Stream
		require.NotEqual(t, given, n)
		p.control(wire.Record{Type: credit.AcceptRecord, Stream: n, Ring: p.place()})
		o := <-next
		require.NoError(t, o.err)

		p.control(wire.Record{Type: credit.AcceptRecord, Stream: given, Ring: p.place()})
		require.Equal(t, given, p.last(credit.ResetRecord).Stream)
		p.control(record(credit.ResetRecord, given), record(credit.FinAckRecord, given))
		require.Equal(t, given, p.last(credit.FinAckRecord).Stream)

		again := dialing(context.Background(), first.Link())
		require.Equal(t, given, p.last(credit.OpenRecord).Stream, "the number is free")
		p.control(wire.Record{Type: credit.RefuseRecord, Stream: given, Reason: wire.RefusedMemory})
		require.ErrorIs(t, (<-again).err, syscall.ECONNREFUSED)
		_ = o.s.Close(0)
	})
}

// A peer that is stopped, or does not want to, may leave OPEN unanswered.
func TestAnOpenThatIsNotAnsweredHasATimeLimit(t *testing.T) {
	besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
		began := time.Now()
		select {
		case o := <-dialing(context.Background(), first.Link()):
			require.ErrorIs(t, o.err, context.DeadlineExceeded)
			require.Equal(t, testConfig.HandshakeTimeout, time.Since(began))
		case <-time.After(time.Hour):
			require.Fail(t, "it is still waited for")
		}
	})
}

// A breach ends all streams of its link, and none of another's. What had arrived before it can be
// read, and nothing that came behind.
func TestABreachEndsEveryStreamOfItsLink(t *testing.T) {
	besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
		const streams = 100
		for n := range uint32(streams) {
			p.control(wire.Record{Type: credit.OpenRecord, Stream: n + 1, Ring: p.place(), Port: uint16(40000 + n)})
			synctest.Wait()
			p.data(n+1, 7)
			synctest.Wait()
		}
		var accepted []*Stream
		for range streams {
			accepted = append(accepted, b.accept())
		}
		p.data(streams+1, 1)
		p.data(1, 7)
		var all sync.WaitGroup
		for _, s := range accepted {
			all.Go(func() {
				got, err := readAll(s)
				if len(got) != 7 {
					t.Errorf("%d bytes", len(got))
				}
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorIs(t, writeAll(s, []byte("x")), syscall.EPROTO)
				require.NoError(t, s.Close(time.Second))
			})
		}
		all.Wait()
		_, err := first.Read(make([]byte, 1), deadline.New())
		require.ErrorIs(t, err, syscall.EPROTO)
		require.ErrorContains(t, err, "there is no stream 101")
	})
}

// A peer may open streams as fast as its window lets it, and never read what
// they are answered. Nobody else waits for that, and the link's other streams go
// on.
func TestAFloodOfOpensIsAnsweredInItsTurn(t *testing.T) {
	for _, reason := range []wire.RefuseReason{0, wire.RefusedBacklog} {
		besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
			b.refuse = reason
			p.deaf = true
			for n := range uint32(200) {
				p.control(wire.Record{Type: credit.OpenRecord, Stream: n + 1, Ring: p.place(), Port: uint16(n + 1)})
				synctest.Wait()
			}
			_, live := first.Link().table()
			require.GreaterOrEqual(t, live, 201-credit.RecordWindow, "those that have been refused are gone")
			p.data(0, 5)
			m, err := first.Read(make([]byte, 10), deadline.New())
			require.NoError(t, err)
			require.Equal(t, 5, m)
			require.NoError(t, writeAll(first, []byte("still here")))

			p.control(wire.Record{Type: credit.OpenRecord, Stream: 77, Ring: p.place(), Port: 1})
			_, err = first.Read(make([]byte, 1), deadline.New())
			require.ErrorIs(t, err, syscall.EPROTO, "there is a stream of this number, answered or not")
			require.ErrorContains(t, err, "OPEN for stream 77, which exists")
			for range len(b.streams) {
				require.NoError(t, b.accept().Close(time.Second))
			}
		})
	}
}

// A peer that takes no answers may not dial for ever.
func TestTooManyOpensWithoutAnAnswerAreABreach(t *testing.T) {
	for _, reason := range []wire.RefuseReason{0, wire.RefusedBacklog} {
		besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
			b.refuse = reason
			p.deaf = true
			for n := range uint32(wire.MaxOpens + 2*credit.RecordWindow) {
				p.control(wire.Record{Type: credit.OpenRecord, Stream: n + 1, Ring: p.place(), Port: uint16(n + 1)})
				synctest.Wait()
			}
			_, err := first.Read(make([]byte, 1), deadline.New())
			require.ErrorIs(t, err, syscall.EPROTO)
			require.ErrorContains(t, err, "OPEN when 256 others are not answered")
			for range len(b.streams) {
				require.NoError(t, b.accept().Close(time.Second))
			}
		})
	}
}

// Two streams may not have one pair of addresses.
func TestAPortThatIsTakenIsRefused(t *testing.T) {
	besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
		open := func(n uint32, port uint16) {
			p.control(wire.Record{Type: credit.OpenRecord, Stream: n, Ring: p.place(), Port: port})
		}
		open(1, 40001)
		require.EqualValues(t, 1, p.last(credit.AcceptRecord).Stream)
		open(2, 40001)
		require.Equal(t, wire.Record{Type: credit.RefuseRecord, Stream: 2, Reason: wire.RefusedTaken}, p.last(credit.RefuseRecord))
		open(2, first.RemoteAddr().Port())
		require.Equal(t, wire.RefusedTaken, p.last(credit.RefuseRecord).Reason, "the first stream's is the queue pair's")
		open(2, 40002)
		require.EqualValues(t, 2, p.last(credit.AcceptRecord).Stream, "the number is free")
		for range 2 {
			_ = b.accept().Close(0)
		}
	})
}

// Behind GOAWAY no stream begins, and those that are there live on.
func TestStreamsLiveOnBehindGOAWAY(t *testing.T) {
	besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
		p.control(record(credit.GoAwayRecord, 0))
		synctest.Wait()
		_, err := first.Link().Open(context.Background())
		require.ErrorIs(t, err, errLeaving)
		p.data(0, 5)
		m, err := first.Read(make([]byte, 10), deadline.New())
		require.NoError(t, err)
		require.Equal(t, 5, m)
		require.NoError(t, writeAll(first, []byte("still here")))

		require.NoError(t, first.Close(time.Second))
		p.control(wire.Record{Type: credit.FinRecord, Position: 5}, record(credit.FinAckRecord, 0))
		p.last(credit.GoAwayRecord)
	})
}

// A peer that does not answer GOAWAY is given up after a while, however long the link may be
// idle: a peer that has no stream has nothing to wait for.
func TestGOAWAYIsNotWaitedForLong(t *testing.T) {
	besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
		first.link.cfg.LinkIdle = time.Hour
		require.NoError(t, first.Close(time.Second))
		p.control(wire.Record{Type: credit.FinRecord}, record(credit.FinAckRecord, 0))
		synctest.Wait()
		first.link.Leave()
		p.last(credit.GoAwayRecord)
		time.Sleep(closeTimeout - time.Second)
		require.False(t, isGone(first.link))
		time.Sleep(time.Second + drainTime)
		require.True(t, isGone(first.link))
	})
}

// FuzzPeerOfManyStreams has a peer that dialed, or that was dialed, do anything with a few streams,
// whose owners read them, write to them and close them. In the end nothing is left.
func FuzzPeerOfManyStreams(f *testing.F) {
	for i := range byte(hostileActs) {
		f.Add([]byte{0, 1, 0, 9, 1, 1, 0, 5, i, 1, 0, 0, 0, 2, 1, 0, i, 2, 0, 7, i, 0, 0, 0})
		f.Add([]byte{i, 0, 2, 3, i, 0, 0, 1, 1, 0, 0, 9, i, 255, 255, 255, 0})
	}
	f.Fuzz(func(t *testing.T, actions []byte) {
		act := func(first *Stream, p *rawPeer, meanwhile func()) {
			for ; len(actions) >= 4; actions = actions[4:] {
				p.act(first.link, actions[0]%64, uint32(actions[1]), binary.BigEndian.Uint16(actions[2:]))
				// The race detector would report a peer that writes where the link is reading, and
				// so spoils its own bytes: here it is a goroutine that writes.
				if raceEnabled || actions[0]&64 != 0 {
					synctest.Wait()
				}
				meanwhile()
			}
			synctest.Wait()
			meanwhile()
			owner(first, len(actions))
		}
		if len(actions)%2 == 1 {
			besideARawListenerWith(t, small, func(t *testing.T, first *Stream, p *rawPeer) {
				act(first, p, func() {})
			})
			return
		}
		besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
			act(first, p, func() {
				for len(b.came) > 0 {
					go owner(b.accept(), p.sent)
				}
			})
		})
	})
}

// owner uses a stream in one of some ways, and closes it.
func owner(s *Stream, way int) {
	limit := deadline.New()
	limit.Set(time.Now().Add(time.Second))
	defer limit.Set(time.Time{})
	switch way % 6 {
	case 0:
		for b, err := make([]byte, 100), error(nil); err == nil; {
			_, err = s.Read(b, limit)
		}
	case 1:
		_, _ = s.Write(make([]byte, 10_000), limit)
	case 2:
		_ = s.CloseRead()
		_ = s.CloseWrite()
	case 3:
		for n := 1; n > 0; {
			held, err := s.Peek(40, limit)
			if n = len(held); err == nil {
				n /= 2
			}
			_, _ = s.Discard(n, limit)
		}
	case 4:
		v := net.Buffers{nil, make([]byte, 10), nil, make([]byte, 100), make([]byte, 10_000)}
		_, _ = s.WriteBuffers(&v, limit)
	}
	_ = s.Close(time.Duration(way%3) * time.Second)
}

// hostileActs is how many kinds of things rawPeer.act does.
const hostileActs = 20

// act does one thing that a peer may do, by the book or not.
func (p *rawPeer) act(l *Link, what byte, a uint32, n uint16) {
	value, stream := uint64(n%64), a%8
	switch what % hostileActs {
	case 0:
		p.control(wire.Record{Type: credit.OpenRecord, Stream: stream, Ring: p.place(), Port: n})
	case 1, 2:
		p.data(stream, int(n%64))
	case 3:
		p.data(stream|1<<31, int(n%64))
	case 4:
		p.control(wire.Record{Type: credit.CreditRecord, Stream: stream, Position: value * 1000})
	case 5:
		p.control(wire.Record{Type: credit.FinRecord, Stream: stream, Position: value})
	case 6:
		p.control(wire.Record{Type: credit.ResetRecord, Stream: stream, Position: value, Late: n > 1<<15})
	case 7:
		p.control(record(credit.FinAckRecord, stream))
	case 8:
		p.control(wire.Record{Type: credit.RingRecord, Stream: stream, Ring: p.place()})
	case 9:
		p.control(wire.Record{Type: credit.AcceptRecord + credit.Record(n%2), Stream: stream, Ring: p.place(), Reason: wire.RefusedTaken})
	case 10:
		p.control(record(credit.GoAwayRecord, 0))
	case 11: // all at once
		p.control(
			wire.Record{Type: credit.OpenRecord, Stream: stream, Ring: p.place(), Port: n},
			wire.Record{Type: credit.FinRecord, Stream: stream},
			record(credit.FinAckRecord, stream))
	case 12:
		p.deaf = !p.deaf
	case 13:
		time.Sleep(time.Duration(n) * time.Millisecond)
	case 14:
		p.post(p.write(p.peer.Addr+uint64(n), p.peer.RKey, int(a)))
	case 15:
		_ = p.ep.Disconnect()
	case 16:
		p.acknowledge(uint64(a), value)
	case 17: // no message
		p.send(p.out.Bytes()[a : a+uint32(n%64)])
	case 18: // any record
		p.send(encoded(wire.Header{}, wire.Record{Type: credit.Record(a % 12), Stream: uint32(n), Position: value, Reason: wire.RefuseReason(n >> 8)}))
	case 19:
		go func() {
			if s, err := l.Open(context.Background()); err == nil {
				owner(s, int(a))
			}
		}()
	}
}
