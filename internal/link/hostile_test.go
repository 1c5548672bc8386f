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

// Peers that break the protocol on a link with several streams: endpoints driven
// by hand. What can go wrong with one stream is tested in package rconn.

// rawPeer is the hand-driven end of a link.
type rawPeer struct {
	t    *testing.T
	ep   fabric.Endpoint
	ring fabric.Memory
	out  fabric.Memory
	peer wire.RingPlace // that of the first stream at the other end
	sent int            // SENDs, each with a place of its own in out
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

func (p *rawPeer) hello(typ wire.RecordType) []byte { return p.helloWith(typ, 0) }

func (p *rawPeer) helloWith(typ wire.RecordType, features wire.Features) []byte {
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
	at := p.sent % 1000 * wire.MessageSize
	p.sent++
	b := p.out.Bytes()[at:][:wire.HeaderSize+len(records)*wire.RecordSize]
	wire.Header{}.Put(b)
	if !p.deaf {
		p.polled.Put(b)
	}
	for i, r := range records {
		r.Put(b[wire.HeaderSize+i*wire.RecordSize:])
	}
	p.post(fabric.WorkRequest{Op: fabric.Send, Data: b, Memory: p.out})
}

// data sends n bytes for a stream, wherever its ring is: into that of the first.
func (p *rawPeer) data(stream uint32, n int) {
	p.post(fabric.WorkRequest{Op: fabric.WriteImm, Imm: stream, Data: p.out.Bytes()[:n], Memory: p.out,
		RemoteAddr: p.peer.Addr, RKey: p.peer.RKey})
}

func (p *rawPeer) post(wr fabric.WorkRequest) {
	wr.Signaled = true
	_ = p.ep.PostSend([]fabric.WorkRequest{wr})
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
func (p *rawPeer) last(typ wire.RecordType) wire.Record {
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

// besideARawListener runs a test with a link to a listener that is driven by
// hand.
func besideARawListener(t *testing.T, test func(t *testing.T, first *Stream, p *rawPeer)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
		require.NoError(t, err)
		raw := make(chan *rawPeer)
		go func() {
			ep, err := l.Accept()
			require.NoError(t, err)
			p := openRaw(t, ep)
			p.meet(ep.Private())
			require.NoError(t, ep.Accept(context.Background(), p.hello(wire.AcceptRecord)))
			raw <- p
		}()
		ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		s, err := Dial(context.Background(), ep, testConfig)
		require.NoError(t, err)
		p := <-raw
		test(t, s, p)
		_ = s.Close(0)
		_ = p.ep.Close()
		_ = l.Close()
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
	})
}

// besideARawDialer is the same with the sides changed. The backlog takes what
// streams the peer opens.
func besideARawDialer(t *testing.T, test func(t *testing.T, first *Stream, p *rawPeer, b *backlog)) {
	besideARawDialerWith(t, testConfig, test)
}

func besideARawDialerWith(t *testing.T, cfg Config, test func(t *testing.T, first *Stream, p *rawPeer, b *backlog)) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
		require.NoError(t, err)
		b := newBacklog()
		accepted := make(chan *Stream)
		go func() {
			ep, err := l.Accept()
			require.NoError(t, err)
			cfg.Acceptor, cfg.Addresses = b, new(Addresses)
			_, s, err := Accept(context.Background(), ep, cfg)
			require.NoError(t, err)
			accepted <- s
		}()
		ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		p := openRaw(t, ep)
		answer, err := ep.Connect(context.Background(), p.hello(wire.OpenRecord))
		require.NoError(t, err)
		p.meet(answer)
		require.NoError(t, ep.Confirm())
		s := <-accepted
		test(t, s, p, b)
		_ = s.Close(0)
		_ = p.ep.Close()
		_ = l.Close()
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
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

func record(typ wire.RecordType, stream uint32) wire.Record {
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
		"CREDIT": {"CREDIT for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(wire.CreditRecord, n)) }},
		"FIN":    {"FIN for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(wire.FinRecord, n)) }},
		"RESET":  {"RESET for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(wire.ResetRecord, n)) }},
		"FINACK": {"FINACK for a stream that is opening", func(p *rawPeer, n uint32) { p.control(record(wire.FinAckRecord, n)) }},
		"RING": {"RING for a stream that is opening", func(p *rawPeer, n uint32) {
			p.control(wire.Record{Type: wire.RingRecord, Stream: n, Ring: p.place()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
				dial := dialing(context.Background(), first.Link())
				test.do(p, p.last(wire.OpenRecord).Stream)
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
	dialEmpty := func(ctx context.Context, ep fabric.Endpoint, cfg Config) error {
		_, err := DialEmpty(ctx, ep, cfg)
		return err
	}
	dial := func(ctx context.Context, ep fabric.Endpoint, cfg Config) error {
		_, err := Dial(ctx, ep, cfg)
		return err
	}
	for name, c := range map[string]struct {
		dial   func(context.Context, fabric.Endpoint, Config) error
		answer wire.Features
	}{
		"an older side that does not know of links without a stream": {dialEmpty, 0},
		"no stream for the one that was asked for":                   {dial, wire.Empty},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{})
				l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
				require.NoError(t, err)
				answered := make(chan error)
				go func() {
					ep, err := l.Accept()
					require.NoError(t, err)
					defer ep.Close()
					p := openRaw(t, ep)
					answered <- ep.Accept(context.Background(), p.helloWith(wire.AcceptRecord, c.answer))
				}()
				ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
				require.NoError(t, err)
				failed := make(chan error, 1)
				go func() { failed <- c.dial(context.Background(), ep, testConfig) }()
				var rejected *fabric.RejectError
				require.ErrorAs(t, <-answered, &rejected)
				require.ErrorIs(t, <-failed, syscall.EPROTO)
				require.NoError(t, l.Close())
				time.Sleep(time.Minute)
				require.Zero(t, n.Open(), "endpoints left open")
				require.Zero(t, inUse(testConfig.Budget))
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
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{})
				l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
				require.NoError(t, err)
				accepted := make(chan error, 1)
				go func() {
					ep, err := l.Accept()
					require.NoError(t, err)
					cfg := testConfig
					cfg.Acceptor = c.acceptor
					_, _, err = Accept(context.Background(), ep, cfg)
					accepted <- err
				}()
				ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
				require.NoError(t, err)
				p := openRaw(t, ep)
				_, err = ep.Connect(context.Background(), p.helloWith(wire.OpenRecord, c.features))
				var rejected *fabric.RejectError
				require.ErrorAs(t, err, &rejected)
				require.Contains(t, wire.DecodeReject(rejected.Private).Reason, "a link without a stream")
				require.ErrorIs(t, <-accepted, syscall.EPROTO)
				require.NoError(t, ep.Close())
				require.NoError(t, l.Close())
				time.Sleep(time.Minute)
				require.Zero(t, n.Open(), "endpoints left open")
				require.Zero(t, inUse(testConfig.Budget))
			})
		})
	}
}

func TestAStreamIsAnsweredOnce(t *testing.T) {
	accept := func(p *rawPeer, n uint32) wire.Record {
		return wire.Record{Type: wire.AcceptRecord, Stream: n, Ring: p.place()}
	}
	refuse := func(_ *rawPeer, n uint32) wire.Record {
		return wire.Record{Type: wire.RefuseRecord, Stream: n, Reason: wire.RefusedBacklog}
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
				n := p.last(wire.OpenRecord).Stream
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
		given := p.last(wire.OpenRecord).Stream
		cancel()
		require.ErrorIs(t, (<-dial).err, context.Canceled)

		next := dialing(context.Background(), first.Link())
		n := p.last(wire.OpenRecord).Stream
		require.NotEqual(t, given, n)
		p.control(wire.Record{Type: wire.AcceptRecord, Stream: n, Ring: p.place()})
		o := <-next
		require.NoError(t, o.err)

		p.control(wire.Record{Type: wire.AcceptRecord, Stream: given, Ring: p.place()})
		require.Equal(t, given, p.last(wire.ResetRecord).Stream)
		p.control(record(wire.ResetRecord, given), record(wire.FinAckRecord, given))
		require.Equal(t, given, p.last(wire.FinAckRecord).Stream)

		again := dialing(context.Background(), first.Link())
		require.Equal(t, given, p.last(wire.OpenRecord).Stream, "the number is free")
		p.control(wire.Record{Type: wire.RefuseRecord, Stream: given, Reason: wire.RefusedMemory})
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
			require.Equal(t, testConfig.Handshake, time.Since(began))
		case <-time.After(time.Hour):
			require.Fail(t, "it is still waited for")
		}
	})
}

// A breach ends all streams of its link, and none of another's. What had arrived
// can be read.
func TestABreachEndsEveryStreamOfItsLink(t *testing.T) {
	besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
		const streams = 100
		for n := range uint32(streams) {
			p.control(wire.Record{Type: wire.OpenRecord, Stream: n + 1, Ring: p.place(), Port: uint16(40000 + n)})
			synctest.Wait()
			p.data(n+1, 7)
			synctest.Wait()
		}
		var accepted []*Stream
		for range streams {
			accepted = append(accepted, b.accept())
		}
		p.data(streams+1, 1)
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
				p.control(wire.Record{Type: wire.OpenRecord, Stream: n + 1, Ring: p.place(), Port: uint16(n + 1)})
				synctest.Wait()
			}
			_, live := first.Link().table()
			require.GreaterOrEqual(t, live, 201-credit.RecordWindow, "those that have been refused are gone")
			p.data(0, 5)
			m, err := first.Read(make([]byte, 10), deadline.New())
			require.NoError(t, err)
			require.Equal(t, 5, m)
			require.NoError(t, writeAll(first, []byte("still here")))

			p.control(wire.Record{Type: wire.OpenRecord, Stream: 77, Ring: p.place(), Port: 1})
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
				p.control(wire.Record{Type: wire.OpenRecord, Stream: n + 1, Ring: p.place(), Port: uint16(n + 1)})
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
			p.control(wire.Record{Type: wire.OpenRecord, Stream: n, Ring: p.place(), Port: port})
		}
		open(1, 40001)
		require.EqualValues(t, 1, p.last(wire.AcceptRecord).Stream)
		open(2, 40001)
		require.Equal(t, wire.Record{Type: wire.RefuseRecord, Stream: 2, Reason: wire.RefusedTaken}, p.last(wire.RefuseRecord))
		open(2, first.RemoteAddr().Port())
		require.Equal(t, wire.RefusedTaken, p.last(wire.RefuseRecord).Reason, "the first stream's is the queue pair's")
		open(2, 40002)
		require.EqualValues(t, 2, p.last(wire.AcceptRecord).Stream, "the number is free")
		for range 2 {
			_ = b.accept().Close(0)
		}
	})
}

// Behind GOAWAY no stream begins, and those that are there live on.
func TestStreamsLiveOnBehindGOAWAY(t *testing.T) {
	besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
		p.control(record(wire.GoAwayRecord, 0))
		synctest.Wait()
		_, err := first.Link().Open(context.Background())
		require.ErrorIs(t, err, errLeaving)
		p.data(0, 5)
		m, err := first.Read(make([]byte, 10), deadline.New())
		require.NoError(t, err)
		require.Equal(t, 5, m)
		require.NoError(t, writeAll(first, []byte("still here")))

		require.NoError(t, first.Close(time.Second))
		p.control(wire.Record{Type: wire.FinRecord, Position: 5}, record(wire.FinAckRecord, 0))
		p.last(wire.GoAwayRecord)
	})
}

// A peer that does not answer GOAWAY is given up after a while, however long the link may be
// idle: a peer that has no stream has nothing to wait for.
func TestGOAWAYIsNotWaitedForLong(t *testing.T) {
	besideARawListener(t, func(t *testing.T, first *Stream, p *rawPeer) {
		first.link.cfg.Idle = time.Hour
		require.NoError(t, first.Close(time.Second))
		p.control(wire.Record{Type: wire.FinRecord}, record(wire.FinAckRecord, 0))
		synctest.Wait()
		first.link.Leave()
		p.last(wire.GoAwayRecord)
		time.Sleep(patience - time.Second)
		require.False(t, isGone(first.link))
		time.Sleep(time.Second + drainTime)
		require.True(t, isGone(first.link))
	})
}

// FuzzPeerOfManyStreams has a peer do anything with a few streams, whose owners
// read them, write to them and close them. In the end nothing is left.
func FuzzPeerOfManyStreams(f *testing.F) {
	for i := range byte(14) {
		f.Add([]byte{0, 1, 0, 9, 1, 1, 0, 5, i, 1, 0, 0, 0, 2, 1, 0, i, 2, 0, 7, i, 0, 0, 0})
	}
	f.Fuzz(func(t *testing.T, actions []byte) {
		besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
			accept := func() {
				for len(b.came) > 0 {
					go owner(b.accept(), p.sent)
				}
			}
			for ; len(actions) >= 4; actions = actions[4:] {
				p.act(actions[0], uint32(actions[1]%8), binary.BigEndian.Uint16(actions[2:]))
				if raceEnabled || actions[0]&64 != 0 {
					synctest.Wait()
				}
				accept()
			}
			synctest.Wait()
			accept()
			owner(first, len(actions))
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

// act does one thing that a peer may do with a stream, by the book or not.
func (p *rawPeer) act(what byte, stream uint32, n uint16) {
	value := uint64(n % 64)
	switch what % 14 {
	case 0:
		p.control(wire.Record{Type: wire.OpenRecord, Stream: stream, Ring: p.place(), Port: n})
	case 1, 2:
		p.data(stream, int(n%64))
	case 3:
		p.data(stream|1<<31, int(n%64))
	case 4:
		p.control(wire.Record{Type: wire.CreditRecord, Stream: stream, Position: value * 1000})
	case 5:
		p.control(wire.Record{Type: wire.FinRecord, Stream: stream, Position: value})
	case 6:
		p.control(wire.Record{Type: wire.ResetRecord, Stream: stream, Position: value, Late: n > 1<<15})
	case 7:
		p.control(record(wire.FinAckRecord, stream))
	case 8:
		p.control(wire.Record{Type: wire.RingRecord, Stream: stream, Ring: p.place()})
	case 9:
		p.control(wire.Record{Type: wire.AcceptRecord, Stream: stream, Ring: p.place()})
	case 10:
		p.control(record(wire.GoAwayRecord, 0))
	case 11: // all at once
		p.control(
			wire.Record{Type: wire.OpenRecord, Stream: stream, Ring: p.place(), Port: n},
			wire.Record{Type: wire.FinRecord, Stream: stream},
			record(wire.FinAckRecord, stream))
	case 12:
		p.deaf = !p.deaf
	case 13:
		time.Sleep(time.Duration(n) * time.Millisecond)
	}
}
