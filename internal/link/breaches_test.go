package link

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// What a peer does against the protocol, and what this side says then.

// small is the least that a link can have.
var small = func() Setup {
	cfg := testConfig
	cfg.RecvBuffer, cfg.RecvQueue = wire.MinRing, 8
	return cfg
}()

// quarter is for how many data messages a raw peer has to send link credit.
const quarter = rawReceives / 4

// raw returns a SEND of one record that begins with the given bytes.
func raw(record ...byte) []byte {
	b := make([]byte, wire.HeaderSize+wire.RecordSize)
	copy(b[wire.HeaderSize:], record)
	return b
}

// sendMessages has this side send n data messages, one after the other.
func (p *rawPeer) sendMessages(n int) {
	for range n {
		_ = writeAll(p.s, []byte("x"))
		synctest.Wait()
	}
}

// endWrites has this side send n bytes and FIN.
func (p *rawPeer) endWrites(n int) {
	_ = writeAll(p.s, make([]byte, n))
	_ = p.s.CloseWrite()
	synctest.Wait()
}

// violation is what a peer does.
type violation struct {
	says string // by this side
	do   func(p *rawPeer)
}

// anyPeersBreaches are those of a peer that dialed, and of one that was dialed.
var anyPeersBreaches = map[string]violation{
	"data beyond the ring's credit": {"credit ends at 4096", func(p *rawPeer) { p.data(0, 4096); p.data(0, 1) }},
	"data over the ring's end": {"200 bytes at 4000 in a ring of 4096", func(p *rawPeer) {
		p.data(0, 4000)
		_, _ = io.ReadFull(reader{p.s}, make([]byte, 4000))
		p.data(0, 200)
	}},
	"more messages than receives": {"data message 9 when 8 were granted", func(p *rawPeer) {
		wr := p.write(p.peer.Addr, p.peer.RKey, 1)
		wr.Op = fabric.WriteImm
		p.post(slices.Repeat([]fabric.WorkRequest{wr}, 9)...)
	}},
	"data for no stream":                 {"8 bytes of data: there is no stream 7", func(p *rawPeer) { p.data(7, 8) }},
	"data for a number out of range":     {"data for stream 65536", func(p *rawPeer) { p.data(65536, 8) }},
	"empty data":                         {"data message of 0 bytes", func(p *rawPeer) { p.data(0, 0) }},
	"empty data for no stream":           {"there is no stream 4", func(p *rawPeer) { p.data(4, 0) }},
	"data for a ring not offered":        {"new ring when none was offered", func(p *rawPeer) { p.data(uint32(wire.NewRing), 8) }},
	"data after FIN":                     {"behind the end", func(p *rawPeer) { p.control(finAt(0)); p.data(0, 5) }},
	"credit for what was not sent":       {"CREDIT for 1 bytes after 0, with 0 sent", func(p *rawPeer) { p.control(creditOf(1)) }},
	"credit for nothing":                 {"CREDIT for 0 bytes after 0", func(p *rawPeer) { p.control(creditOf(0)) }},
	"credit for too many messages":       {"acknowledgement of {Data:1 Records:0} when {Data:0 Records:0} were sent", func(p *rawPeer) { p.acknowledge(1, 0) }},
	"credit for too many records":        {"acknowledgement of {Data:0 Records:1} when {Data:0 Records:0} were sent", func(p *rawPeer) { p.acknowledge(0, 1) }},
	"too many messages, beside a record": {"acknowledgement of {Data:1 Records:0}", func(p *rawPeer) { p.send(encoded(wire.Header{Data: 1}, finAt(0))) }},
	"link credit for nothing":            {"link credit for 0 data messages and 0 record SENDs", func(p *rawPeer) { p.acknowledge(0, 0) }},
	"link credit for too little":         {"link credit for 1 data messages and 0 record SENDs", func(p *rawPeer) { p.sendMessages(1); p.acknowledge(1, 0) }},
	"link credit twice": {"link credit for 0 data messages", func(p *rawPeer) {
		p.sendMessages(quarter)
		p.acknowledge(quarter, 0)
		p.acknowledge(quarter, 0)
	}},
	"acknowledgement that runs backwards": {"acknowledgement runs backwards: {Data:1 Records:0} after {Data:16 Records:0}", func(p *rawPeer) {
		p.sendMessages(quarter)
		p.acknowledge(quarter, 0)
		p.acknowledge(1, 0)
	}},
	"acknowledgement that runs backwards beside a record": {"acknowledgement runs backwards", func(p *rawPeer) {
		p.sendMessages(quarter)
		p.acknowledge(quarter, 0)
		p.control(finAt(0))
	}},
	"more record SENDs than granted": {"record SEND 9 when 8 were granted", func(p *rawPeer) {
		_ = writeAll(p.s, make([]byte, 9))
		synctest.Wait()
		var wr []fabric.WorkRequest
		for n := range uint64(9) {
			wr = append(wr, p.sending(encoded(wire.Header{}, creditOf(n+1))))
		}
		p.post(wr...)
	}},
	"record of type 0":              {"record of type 0", func(p *rawPeer) { p.send(raw(0)) }},
	"record for a number too large": {"FIN for stream 65536", func(p *rawPeer) { p.control(record(credit.FinRecord, 65536)) }},
	"a second record that is none":  {"record of type 0", func(p *rawPeer) { p.control(finAt(0), wire.Record{}) }},
	"reserved bits set":             {"CREDIT with bits set", func(p *rawPeer) { p.send(raw(4, 0, 0, 0, 1)) }},
	"GOAWAY twice":                  {"a second GOAWAY", func(p *rawPeer) { p.control(goodbye); p.control(goodbye) }},
	"empty control message":         {"control message of 0 bytes", func(p *rawPeer) { p.send(nil) }},
	"short header":                  {"control message of 15 bytes", func(p *rawPeer) { p.send(raw(6)[:15]) }},
	"long control message":          {"local length error", func(p *rawPeer) { p.send(make([]byte, wire.MessageSize+1)) }},
	"garbage":                       {"control message of 24 bytes", func(p *rawPeer) { p.send([]byte("\xab\xcd garbage garbage garba")) }},
	"FIN ahead of the stream":       {"the end of the stream after 1 bytes, with 0 received", func(p *rawPeer) { p.control(finAt(1)) }},
	"FIN behind the stream":         {"the end of the stream after 0 bytes, with 5 received", func(p *rawPeer) { p.data(0, 5); p.control(finAt(0)) }},
	"FIN twice":                     {"FIN: a second end of the stream", func(p *rawPeer) { p.control(finAt(0)); p.control(finAt(0)) }},
	"RESET with a wrong total":      {"RESET: the end of the stream after 3 bytes", func(p *rawPeer) { p.control(resetAt(3)) }},
	"FINACK for no end":             {"FINACK for no end", func(p *rawPeer) { p.control(finAck) }},
	"FINACK twice":                  {"FINACK for no end", func(p *rawPeer) { p.endWrites(0); p.control(finAck, finAck) }},
	"CREDIT behind FINACK":          {"CREDIT behind FINACK", func(p *rawPeer) { p.endWrites(5); p.control(finAck, creditOf(5)) }},
	"CREDIT that runs backwards": {"CREDIT for 59 bytes after 60", func(p *rawPeer) {
		_ = writeAll(p.s, make([]byte, 100))
		synctest.Wait()
		p.control(creditOf(60))
		p.control(creditOf(59))
	}},
	"RING behind FINACK":             {"RING behind FINACK", func(p *rawPeer) { p.endWrites(0); p.control(finAck, p.offer(0, wire.MinRing)) }},
	"RING before the first is taken": {"a second RING", func(p *rawPeer) { p.control(p.offer(0, wire.MinRing), p.offer(0, wire.MinRing)) }},
	"RING that is too small":         {"RING with a ring of 2048 bytes", func(p *rawPeer) { p.control(p.offer(0, wire.MinRing/2)) }},
	"ACCEPT that nobody waits for":   {"ACCEPT for a stream that is open", func(p *rawPeer) { p.control(p.accept(0)) }},
	"REFUSE that nobody waits for":   {"REFUSE for a stream that is open", func(p *rawPeer) { p.control(p.refuse(0)) }},
	"OPEN of a number out of range":  {"OPEN for stream 65536", func(p *rawPeer) { p.control(p.open(wire.MaxStreams)) }},
	"OPEN with no ring":              {"OPEN with a ring of 0 bytes", func(p *rawPeer) { p.control(record(credit.OpenRecord, 1)) }},
	"ACCEPT for no stream":           {"ACCEPT: there is no stream 3", func(p *rawPeer) { p.control(p.accept(3)) }},
	"a disconnect behind the breach": {"there is no stream 1", func(p *rawPeer) {
		own := endpointOf(p.s.link)
		own.HoldReceives(true) // the link sees the disconnect before what has arrived
		p.data(1, 5)
		p.control(finAt(0))
		_ = p.ep.Disconnect()
		synctest.Wait()
		own.HoldReceives(false)
	}},
}

// listenersBreaches are those of a peer that was dialed.
var listenersBreaches = map[string]violation{
	"OPEN from the passive side": {"OPEN from the side that was dialed", func(p *rawPeer) { p.control(p.open(1)) }},
	"data before ACCEPT":         {"data on a stream that is opening", beforeAnswer(func(p *rawPeer, n uint32) { p.data(n, 5) })},
	"CREDIT before ACCEPT":       {"CREDIT for a stream that is opening", beforeAnswer(func(p *rawPeer, n uint32) { p.control(record(credit.CreditRecord, n)) })},
	"FIN before ACCEPT":          {"FIN for a stream that is opening", beforeAnswer(func(p *rawPeer, n uint32) { p.control(record(credit.FinRecord, n)) })},
	"RESET before ACCEPT":        {"RESET for a stream that is opening", beforeAnswer(func(p *rawPeer, n uint32) { p.control(record(credit.ResetRecord, n)) })},
	"FINACK before ACCEPT":       {"FINACK for a stream that is opening", beforeAnswer(func(p *rawPeer, n uint32) { p.control(record(credit.FinAckRecord, n)) })},
	"RING before ACCEPT":         {"RING for a stream that is opening", beforeAnswer(func(p *rawPeer, n uint32) { p.control(p.offer(n, wire.MinRing)) })},
	"ACCEPT, ACCEPT":             {"ACCEPT for a stream that is open", answeredTwice((*rawPeer).accept, (*rawPeer).accept)},
	"ACCEPT, REFUSE":             {"REFUSE for a stream that is open", answeredTwice((*rawPeer).accept, (*rawPeer).refuse)},
	"REFUSE, ACCEPT":             {"ACCEPT: there is no stream 1", answeredTwice((*rawPeer).refuse, (*rawPeer).accept)},
	"REFUSE, REFUSE":             {"REFUSE: there is no stream 1", answeredTwice((*rawPeer).refuse, (*rawPeer).refuse)},
}

// beforeAnswer has a peer do something with a stream that this side opens, before it has answered.
func beforeAnswer(do func(p *rawPeer, stream uint32)) func(p *rawPeer) {
	return func(p *rawPeer) {
		dial := dialing(context.Background(), p.s.link)
		do(p, p.last(credit.OpenRecord).Stream)
		require.ErrorIs(p.t, (<-dial).err, syscall.EPROTO)
	}
}

// answeredTwice has a peer answer twice to a stream that this side opens.
func answeredTwice(first, second func(p *rawPeer, stream uint32) wire.Record) func(p *rawPeer) {
	return func(p *rawPeer) {
		dial := dialing(context.Background(), p.s.link)
		n := p.last(credit.OpenRecord).Stream
		p.control(first(p, n), second(p, n))
		if o := <-dial; o.err == nil {
			_ = o.s.Close(0)
		}
	}
}

// dialersBreaches are those of a peer that dialed.
var dialersBreaches = map[string]violation{
	"OPEN of a number in use": {"OPEN for stream 0, which exists", func(p *rawPeer) { p.control(p.open(0)) }},
	"OPEN without a port": {"OPEN without a port", func(p *rawPeer) {
		r := p.open(1)
		r.Port = 0
		p.control(r)
	}},
	"OPEN of a number far ahead":                   {"OPEN for stream 300 when 1 numbers were used", func(p *rawPeer) { p.control(p.open(300)) }},
	"OPEN behind GOAWAY":                           {"OPEN behind GOAWAY", func(p *rawPeer) { p.control(goodbye, p.open(1)) }},
	"too many OPENs whose ACCEPT it does not take": {"OPEN when 256 others are not answered", tooManyOpens(0)},
	"too many OPENs whose REFUSE it does not take": {"OPEN when 256 others are not answered", tooManyOpens(wire.RefusedBacklog)},
}

// tooManyOpens has a peer dial for ever, and take no answers.
func tooManyOpens(reason wire.RefuseReason) func(p *rawPeer) {
	return func(p *rawPeer) {
		p.b.refuse = reason
		for n := range uint32(wire.MaxOpens + 2*credit.RecordWindow) {
			p.control(p.open(n + 1))
			synctest.Wait()
		}
	}
}

func TestPeerThatBreaksTheProtocolEndsItsOwnConnection(t *testing.T) {
	for name, b := range anyPeersBreaches {
		t.Run(name, func(t *testing.T) {
			t.Run("listening", func(t *testing.T) { besideAPeer(t, false, small, b.requireEnds) })
			t.Run("dialing", func(t *testing.T) { besideAPeer(t, true, small, b.requireEnds) })
		})
	}
	for name, b := range listenersBreaches {
		t.Run(name, func(t *testing.T) { besideAPeer(t, false, small, b.requireEnds) })
	}
	for name, b := range dialersBreaches {
		t.Run(name, func(t *testing.T) { besideAPeer(t, true, small, b.requireEnds) })
	}
}

// requireEnds requires that the breach ends the peer's link, and no other, though a flood follows.
func (b violation) requireEnds(t *testing.T, p *rawPeer) {
	requireBystander(t, p, func(*Stream) {
		p.deaf = true
		b.do(p)
		for n := range uint32(1000) {
			p.data(n%4, 1000)
			p.control(finAt(0), finAck, p.open(n+1), p.offer(0, wire.MinRing), goodbye)
			p.send(nil)
		}
		synctest.Wait()
		err := writeUntilError(p.s)
		if errors.Is(err, syscall.EPIPE) { // the peer has ended the stream in order
			_, err = p.s.Read(make([]byte, 1), unlimited())
		}
		require.ErrorIs(t, err, syscall.EPROTO)
		require.ErrorContains(t, err, b.says)
		require.NoError(t, p.s.Close(time.Minute))
	})
}

// requireBystander requires that another link outlives what a peer does. It has a stream.
func requireBystander(t *testing.T, p *rawPeer, do func(s *Stream)) {
	c, s, _ := connectLink(t, p.n, testConfig, testConfig)
	do(s)
	requireEcho(t, c, s)
	require.NoError(t, c.Close(time.Minute))
	require.NoError(t, s.Close(time.Minute))
}

// writeUntilError writes until that fails.
func writeUntilError(s *Stream) error {
	for {
		if err := writeAll(s, []byte("x")); err != nil {
			return err
		}
	}
}

func TestPeerCannotWriteOutsideTheRing(t *testing.T) {
	for name, place := range map[string]func(own, others wire.RingPlace) (addr uint64, rkey uint32){
		"behind the ring": func(own, _ wire.RingPlace) (uint64, uint32) { return own.Addr + uint64(own.Size), own.RKey },
		"over its end":    func(own, _ wire.RingPlace) (uint64, uint32) { return own.Addr + uint64(own.Size) - 1, own.RKey },
		"before the ring": func(own, _ wire.RingPlace) (uint64, uint32) { return own.Addr - 1, own.RKey },
		"with no key":     func(own, _ wire.RingPlace) (uint64, uint32) { return own.Addr, 0 },
		"another's ring":  func(_, others wire.RingPlace) (uint64, uint32) { return others.Addr, others.RKey },
	} {
		t.Run(name, func(t *testing.T) {
			besideAPeer(t, false, small, func(t *testing.T, p *rawPeer) {
				requireBystander(t, p, func(other *Stream) {
					addr, rkey := place(p.peer, other.m.PeerRing())
					p.post(p.write(addr, rkey, 2))
					_, err := p.s.Read(make([]byte, 1), unlimited())
					require.ErrorIs(t, err, syscall.ECONNRESET)
					require.ErrorContains(t, err, "access violation")
				})
			})
		})
	}
}

// A peer that sends more of a stream that it has reset, or that both have ended, is disconnected, and
// the stream has ended as it had before.
func TestPeerThatSendsMoreOfAStreamThatIsOverIsDisconnected(t *testing.T) {
	for name, more := range map[string]func(p *rawPeer){
		"RESET":  func(p *rawPeer) { p.control(resetAt(0)) },
		"FIN":    func(p *rawPeer) { p.control(finAt(0)) },
		"data":   func(p *rawPeer) { p.data(0, 5) },
		"CREDIT": func(p *rawPeer) { p.control(creditOf(5)) },
		"RING":   func(p *rawPeer) { p.control(p.offer(0, wire.MinRing)) },
		"FINACK": func(p *rawPeer) { p.control(finAck, finAck) },
	} {
		for _, over := range []struct {
			name string
			end  func(p *rawPeer)
			err  error
		}{
			{"reset", func(p *rawPeer) { p.control(resetAt(0)) }, syscall.ECONNRESET},
			{"ended by both", func(p *rawPeer) { p.endWrites(0); p.control(finAt(0), finAck) }, io.EOF},
		} {
			t.Run(name+" when "+over.name, func(t *testing.T) {
				besideAPeer(t, false, testConfig, func(t *testing.T, p *rawPeer) {
					over.end(p)
					synctest.Wait()
					more(p)
					require.ErrorIs(t, p.ep.Wait(), fabric.ErrDisconnected)
					_, err := p.s.Read(make([]byte, 1), unlimited())
					require.ErrorIs(t, err, over.err)
				})
			})
		}
	}
}

// A breach ends all streams of its link. What had arrived before it can be read, and nothing that
// came behind.
func TestABreachEndsEveryStreamOfItsLink(t *testing.T) {
	besideAPeer(t, true, testConfig, func(t *testing.T, p *rawPeer) {
		const streams = 100
		var accepted []*Stream
		for n := range uint32(streams) {
			p.control(p.open(n + 1))
			accepted = append(accepted, p.b.accept())
			synctest.Wait()
			p.data(n+1, 7)
			synctest.Wait()
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
		_, err := p.s.Read(make([]byte, 1), unlimited())
		require.ErrorIs(t, err, syscall.EPROTO)
		require.ErrorContains(t, err, "there is no stream 101")
	})
}
