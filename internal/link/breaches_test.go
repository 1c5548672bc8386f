package link

import (
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// What a peer does against the protocol, and what comes of it.

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

// Records of the link's first stream.
func creditOf(n uint64) wire.Record { return wire.Record{Type: credit.CreditRecord, Position: n} }
func finAt(n uint64) wire.Record    { return wire.Record{Type: credit.FinRecord, Position: n} }
func resetAt(n uint64) wire.Record  { return wire.Record{Type: credit.ResetRecord, Position: n} }

var (
	finAck  = wire.Record{Type: credit.FinAckRecord}
	goodbye = wire.Record{Type: credit.GoAwayRecord}
)

func (p *rawPeer) open(stream uint32) wire.Record {
	return wire.Record{Type: credit.OpenRecord, Stream: stream, Ring: p.place(), Port: 40001}
}

func (p *rawPeer) offer(size int) wire.Record {
	place := p.place()
	place.Size = size
	return wire.Record{Type: credit.RingRecord, Ring: place}
}

// sendMessages has a stream send n data messages, one after the other.
func sendMessages(s *Stream, n int) {
	for range n {
		_ = writeAll(s, []byte("x"))
		synctest.Wait()
	}
}

// endWrites has a stream send n bytes and FIN.
func endWrites(s *Stream, n int) {
	_ = writeAll(s, make([]byte, n))
	_ = s.CloseWrite()
	synctest.Wait()
}

type violation struct {
	says string
	do   func(s *Stream, p *rawPeer)
}

// anyPeersBreaches are breaches of a peer that dialed, and of one that was dialed.
var anyPeersBreaches = map[string]violation{
	"data beyond the ring's credit": {"credit ends at 4096", func(_ *Stream, p *rawPeer) {
		p.data(0, 4096)
		p.data(0, 1)
	}},
	"data over the ring's end": {"200 bytes at 4000 in a ring of 4096", func(s *Stream, p *rawPeer) {
		p.data(0, 4000)
		_, _ = io.ReadFull(reader{s}, make([]byte, 4000))
		p.data(0, 200)
	}},
	"more messages than receives": {"data message 9 when 8 were granted", func(_ *Stream, p *rawPeer) {
		wr := p.write(p.peer.Addr, p.peer.RKey, 1)
		wr.Op = fabric.WriteImm
		p.post(slices.Repeat([]fabric.WorkRequest{wr}, 9)...)
	}},
	"data for no stream":                 {"8 bytes of data: there is no stream 7", func(_ *Stream, p *rawPeer) { p.data(7, 8) }},
	"data for a number out of range":     {"data for stream 65536", func(_ *Stream, p *rawPeer) { p.data(65536, 8) }},
	"empty data":                         {"data message of 0 bytes", func(_ *Stream, p *rawPeer) { p.data(0, 0) }},
	"empty data for no stream":           {"there is no stream 4", func(_ *Stream, p *rawPeer) { p.data(4, 0) }},
	"data for a ring not offered":        {"new ring when none was offered", func(_ *Stream, p *rawPeer) { p.data(uint32(wire.NewRing), 8) }},
	"data after FIN":                     {"behind the end", func(_ *Stream, p *rawPeer) { p.control(finAt(0)); p.data(0, 5) }},
	"credit for what was not sent":       {"CREDIT for 1 bytes after 0, with 0 sent", func(_ *Stream, p *rawPeer) { p.control(creditOf(1)) }},
	"credit for nothing":                 {"CREDIT for 0 bytes after 0", func(_ *Stream, p *rawPeer) { p.control(creditOf(0)) }},
	"credit for too many messages":       {"acknowledgement of {Data:1 Records:0} when {Data:0 Records:0} were sent", func(_ *Stream, p *rawPeer) { p.acknowledge(1, 0) }},
	"credit for too many records":        {"acknowledgement of {Data:0 Records:1} when {Data:0 Records:0} were sent", func(_ *Stream, p *rawPeer) { p.acknowledge(0, 1) }},
	"too many messages, beside a record": {"acknowledgement of {Data:1 Records:0}", func(_ *Stream, p *rawPeer) { p.send(encoded(wire.Header{Data: 1}, finAt(0))) }},
	"link credit for nothing":            {"link credit for 0 data messages and 0 record SENDs", func(_ *Stream, p *rawPeer) { p.acknowledge(0, 0) }},
	"link credit for too little": {"link credit for 1 data messages and 0 record SENDs", func(s *Stream, p *rawPeer) {
		_ = writeAll(s, []byte("x"))
		synctest.Wait()
		p.acknowledge(1, 0)
	}},
	"link credit twice": {"link credit for 0 data messages", func(s *Stream, p *rawPeer) {
		sendMessages(s, quarter)
		p.acknowledge(quarter, 0)
		p.acknowledge(quarter, 0)
	}},
	"acknowledgement that runs backwards": {"acknowledgement runs backwards: {Data:1 Records:0} after {Data:16 Records:0}", func(s *Stream, p *rawPeer) {
		sendMessages(s, quarter)
		p.acknowledge(quarter, 0)
		p.acknowledge(1, 0)
	}},
	"acknowledgement that runs backwards beside a record": {"acknowledgement runs backwards", func(s *Stream, p *rawPeer) {
		sendMessages(s, quarter)
		p.acknowledge(quarter, 0)
		p.control(finAt(0))
	}},
	"more record SENDs than granted": {"record SEND 9 when 8 were granted", func(s *Stream, p *rawPeer) {
		_ = writeAll(s, make([]byte, 9))
		synctest.Wait()
		var wr []fabric.WorkRequest
		for n := range uint64(9) {
			wr = append(wr, p.sending(encoded(wire.Header{}, creditOf(n+1))))
		}
		p.post(wr...)
	}},
	"record of type 0":              {"record of type 0", func(_ *Stream, p *rawPeer) { p.send(raw(0)) }},
	"record for a number too large": {"FIN for stream 65536", func(_ *Stream, p *rawPeer) { p.control(record(credit.FinRecord, 65536)) }},
	"a second record that is none":  {"record of type 0", func(_ *Stream, p *rawPeer) { p.control(finAt(0), wire.Record{}) }},
	"reserved bits set":             {"CREDIT with bits set", func(_ *Stream, p *rawPeer) { p.send(raw(4, 0, 0, 0, 1)) }},
	"GOAWAY twice":                  {"a second GOAWAY", func(_ *Stream, p *rawPeer) { p.control(goodbye); p.control(goodbye) }},
	"empty control message":         {"control message of 0 bytes", func(_ *Stream, p *rawPeer) { p.send(nil) }},
	"short header":                  {"control message of 15 bytes", func(_ *Stream, p *rawPeer) { p.send(raw(6)[:15]) }},
	"long control message":          {"local length error", func(_ *Stream, p *rawPeer) { p.send(make([]byte, wire.MessageSize+1)) }},
	"garbage":                       {"control message of 24 bytes", func(_ *Stream, p *rawPeer) { p.send([]byte("\xab\xcd garbage garbage garba")) }},
	"FIN ahead of the stream":       {"the end of the stream after 1 bytes, with 0 received", func(_ *Stream, p *rawPeer) { p.control(finAt(1)) }},
	"FIN behind the stream":         {"the end of the stream after 0 bytes, with 5 received", func(_ *Stream, p *rawPeer) { p.data(0, 5); p.control(finAt(0)) }},
	"FIN twice":                     {"FIN: a second end of the stream", func(_ *Stream, p *rawPeer) { p.control(finAt(0)); p.control(finAt(0)) }},
	"RESET with a wrong total":      {"RESET: the end of the stream after 3 bytes", func(_ *Stream, p *rawPeer) { p.control(resetAt(3)) }},
	"FINACK for no end":             {"FINACK for no end", func(_ *Stream, p *rawPeer) { p.control(finAck) }},
	"FINACK twice":                  {"FINACK for no end", func(s *Stream, p *rawPeer) { endWrites(s, 0); p.control(finAck, finAck) }},
	"CREDIT behind FINACK":          {"CREDIT behind FINACK", func(s *Stream, p *rawPeer) { endWrites(s, 5); p.control(finAck, creditOf(5)) }},
	"CREDIT that runs backwards": {"CREDIT for 59 bytes after 60", func(s *Stream, p *rawPeer) {
		_ = writeAll(s, make([]byte, 100))
		synctest.Wait()
		p.control(creditOf(60))
		p.control(creditOf(59))
	}},
	"RING behind FINACK":             {"RING behind FINACK", func(s *Stream, p *rawPeer) { endWrites(s, 0); p.control(finAck, p.offer(wire.MinRing)) }},
	"RING before the first is taken": {"a second RING", func(_ *Stream, p *rawPeer) { p.control(p.offer(wire.MinRing), p.offer(wire.MinRing)) }},
	"RING that is too small":         {"RING with a ring of 2048 bytes", func(_ *Stream, p *rawPeer) { p.control(p.offer(wire.MinRing / 2)) }},
	"ACCEPT that nobody waits for": {"ACCEPT for a stream that is open", func(_ *Stream, p *rawPeer) {
		p.control(wire.Record{Type: credit.AcceptRecord, Ring: p.place()})
	}},
	"REFUSE that nobody waits for": {"REFUSE for a stream that is open", func(_ *Stream, p *rawPeer) {
		p.control(wire.Record{Type: credit.RefuseRecord, Reason: wire.RefusedClosed})
	}},
	"OPEN of a number out of range": {"OPEN for stream 65536", func(_ *Stream, p *rawPeer) { p.control(p.open(wire.MaxStreams)) }},
	"OPEN with no ring": {"OPEN with a ring of 0 bytes", func(_ *Stream, p *rawPeer) {
		p.control(wire.Record{Type: credit.OpenRecord, Stream: 1})
	}},
	"ACCEPT for no stream": {"ACCEPT: there is no stream 3", func(_ *Stream, p *rawPeer) {
		p.control(wire.Record{Type: credit.AcceptRecord, Stream: 3, Ring: p.place()})
	}},
	"REFUSE for no stream": {"REFUSE: there is no stream 3", func(_ *Stream, p *rawPeer) {
		p.control(wire.Record{Type: credit.RefuseRecord, Stream: 3, Reason: wire.RefusedClosed})
	}},
	"RING for no stream": {"RING: there is no stream 3", func(_ *Stream, p *rawPeer) {
		p.control(wire.Record{Type: credit.RingRecord, Stream: 3, Ring: p.place()})
	}},
	"CREDIT for no stream": {"CREDIT: there is no stream 3", func(_ *Stream, p *rawPeer) { p.control(record(credit.CreditRecord, 3)) }},
	"FINACK for no stream": {"FINACK: there is no stream 3", func(_ *Stream, p *rawPeer) { p.control(record(credit.FinAckRecord, 3)) }},
}

// listenersBreaches are those of a peer that was dialed, and dialersBreaches those of one
// that dialed.
var (
	listenersBreaches = map[string]violation{
		"OPEN from the passive side": {"OPEN from the side that was dialed", func(_ *Stream, p *rawPeer) { p.control(p.open(1)) }},
	}
	dialersBreaches = map[string]violation{
		"OPEN of a number in use": {"OPEN for stream 0, which exists", func(_ *Stream, p *rawPeer) { p.control(p.open(0)) }},
		"OPEN without a port": {"OPEN without a port", func(_ *Stream, p *rawPeer) {
			r := p.open(1)
			r.Port = 0
			p.control(r)
		}},
		"OPEN behind GOAWAY": {"OPEN behind GOAWAY", func(_ *Stream, p *rawPeer) { p.control(goodbye, p.open(1)) }},
	}
)

func TestPeerThatBreaksTheProtocolEndsItsOwnConnection(t *testing.T) {
	for name, b := range anyPeersBreaches {
		t.Run(name, func(t *testing.T) {
			t.Run("listening", func(t *testing.T) { besideARawListenerWith(t, small, b.requireEnds) })
			t.Run("dialing", func(t *testing.T) { besideARawDialerWith(t, small, b.requireEndsDialed) })
		})
	}
	for name, b := range listenersBreaches {
		t.Run(name, func(t *testing.T) { besideARawListenerWith(t, small, b.requireEnds) })
	}
	for name, b := range dialersBreaches {
		t.Run(name, func(t *testing.T) { besideARawDialerWith(t, small, b.requireEndsDialed) })
	}
}

func (b violation) requireEndsDialed(t *testing.T, s *Stream, p *rawPeer, _ *backlog) {
	b.requireEnds(t, s, p)
}

// requireEnds requires that the breach ends the peer's link, and no other.
func (b violation) requireEnds(t *testing.T, s *Stream, p *rawPeer) {
	bystander, other, _ := connectLink(t, p.n, testConfig, testConfig)
	p.deaf = true
	b.do(s, p)
	synctest.Wait()
	err := writeUntilError(s)
	if errors.Is(err, syscall.EPIPE) { // the peer has ended the stream in order
		_, err = s.Read(make([]byte, 1), unlimited())
	}
	require.ErrorIs(t, err, syscall.EPROTO)
	require.ErrorContains(t, err, b.says)
	require.NoError(t, s.Close(time.Minute))
	requireEcho(t, bystander, other)
	require.NoError(t, bystander.Close(time.Minute))
	require.NoError(t, other.Close(time.Minute))
}

// writeUntilError writes until that fails.
func writeUntilError(s *Stream) error {
	for {
		if err := writeAll(s, []byte("x")); err != nil {
			return err
		}
	}
}

// A peer that sends more of a stream that it has reset, or that both have ended, is disconnected, and
// the stream has ended as it had before.
func TestPeerThatSendsMoreOfAStreamThatIsOverIsDisconnected(t *testing.T) {
	more := map[string]func(p *rawPeer){
		"RESET":  func(p *rawPeer) { p.control(resetAt(0)) },
		"FIN":    func(p *rawPeer) { p.control(finAt(0)) },
		"data":   func(p *rawPeer) { p.data(0, 5) },
		"CREDIT": func(p *rawPeer) { p.control(creditOf(5)) },
		"RING":   func(p *rawPeer) { p.control(p.offer(wire.MinRing)) },
		"FINACK": func(p *rawPeer) { p.control(finAck, finAck) },
	}
	for name, do := range more {
		t.Run(name, func(t *testing.T) {
			t.Run("reset", func(t *testing.T) {
				besideARawListener(t, func(t *testing.T, s *Stream, p *rawPeer) {
					p.control(resetAt(0))
					synctest.Wait()
					do(p)
					require.ErrorIs(t, p.ep.Wait(), fabric.ErrDisconnected)
					_, err := s.Read(make([]byte, 1), unlimited())
					require.ErrorIs(t, err, syscall.ECONNRESET)
				})
			})
			t.Run("ended by both", func(t *testing.T) {
				besideARawListener(t, func(t *testing.T, s *Stream, p *rawPeer) {
					endWrites(s, 0)
					p.control(finAt(0), finAck)
					_, err := s.Read(make([]byte, 1), unlimited())
					require.Equal(t, io.EOF, err)
					do(p)
					require.ErrorIs(t, p.ep.Wait(), fabric.ErrDisconnected)
					_, err = s.Read(make([]byte, 1), unlimited())
					require.Equal(t, io.EOF, err)
				})
			})
		})
	}
}

func TestBreachIsTheErrorThoughThePeerDisconnects(t *testing.T) {
	besideARawListener(t, func(t *testing.T, s *Stream, p *rawPeer) {
		own := endpointOf(s.link)
		own.HoldReceives(true) // the link sees the disconnect before what has arrived
		p.data(1, 5)
		p.control(finAt(0))
		require.NoError(t, p.ep.Disconnect())
		synctest.Wait()
		own.HoldReceives(false)
		_, err := s.Read(make([]byte, 1), unlimited())
		require.ErrorIs(t, err, syscall.EPROTO)
	})
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
			besideARawListenerWith(t, small, func(t *testing.T, s *Stream, p *rawPeer) {
				bystander, other, _ := connectLink(t, p.n, testConfig, testConfig)
				addr, rkey := place(p.peer, other.peer)
				p.post(p.write(addr, rkey, 2))
				_, err := s.Read(make([]byte, 1), unlimited())
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.ErrorContains(t, err, "access violation")
				requireEcho(t, bystander, other)
				require.NoError(t, bystander.Close(time.Minute))
				require.NoError(t, other.Close(time.Minute))
			})
		})
	}
}

// What Peek returns is in the ring: the peer can change it while the application looks at it.
func TestPeerCanChangeWhatIsPeekedAt(t *testing.T) {
	besideARawListener(t, func(t *testing.T, s *Stream, p *rawPeer) {
		copy(p.out.Bytes(), "before")
		p.data(0, 6)
		held, err := s.Peek(6, unlimited())
		require.NoError(t, err)
		require.Equal(t, "before", string(held))
		copy(p.out.Bytes(), "behind")
		p.post(p.write(p.peer.Addr, p.peer.RKey, 6))
		require.Equal(t, "behind", string(held))
	})
}

func TestFloodOfMessagesDisturbsNoOtherConnection(t *testing.T) {
	for name, flood := range map[string]func(p *rawPeer){
		"link credit":  func(p *rawPeer) { p.acknowledge(0, 0) },
		"records":      func(p *rawPeer) { p.control(creditOf(1)) },
		"GOAWAYs":      func(p *rawPeer) { p.control(goodbye) },
		"offers":       func(p *rawPeer) { p.control(p.offer(wire.MinRing)) },
		"data":         func(p *rawPeer) { p.data(0, 1000) },
		"empty data":   func(p *rawPeer) { p.data(0, 0) },
		"empty SENDs":  func(p *rawPeer) { p.send(nil) },
		"OPENs":        func(p *rawPeer) { p.control(p.open(uint32(p.sent) % wire.MaxStreams)) },
		"ends":         func(p *rawPeer) { p.control(finAt(0), finAck) },
		"full records": func(p *rawPeer) { p.control(slices.Repeat([]wire.Record{finAck}, wire.MaxRecords)...) },
	} {
		t.Run(name, func(t *testing.T) {
			besideARawListenerWith(t, small, func(t *testing.T, s *Stream, p *rawPeer) {
				bystander, other, _ := connectLink(t, p.n, testConfig, testConfig)
				for range 10_000 {
					flood(p)
				}
				time.Sleep(time.Second)
				requireEcho(t, bystander, other)
				require.ErrorIs(t, writeUntilError(s), syscall.EPROTO, "the flood has ended its own link")
				require.NoError(t, bystander.Close(time.Minute))
				require.NoError(t, other.Close(time.Minute))
			})
		})
	}
}

// A stream that has ended ignores offers. A peer that keeps to its windows can go on to make them:
// each costs what a message costs, and no other stream waits for it.
func TestFloodWithinItsWindowsHoldsNothingUp(t *testing.T) {
	besideARawListener(t, func(t *testing.T, s *Stream, p *rawPeer) {
		endWrites(s, 0)
		for range 1000 {
			p.control(slices.Repeat([]wire.Record{p.offer(wire.MinRing)}, wire.MaxRecords)...)
			synctest.Wait()
		}
		require.Less(t, s.link.Stats().WorkRequests, uint64(1000/credit.RecordCredit+10), "link credit, and no answer to each")
		p.data(0, 5)
		n, err := s.Read(make([]byte, 10), unlimited())
		require.NoError(t, err)
		require.Equal(t, 5, n)
	})
}

// The peer receives all that it is sent, and never sends anything.
func TestPeerThatIsSilentHoldsUpItsOwnConnectionOnly(t *testing.T) {
	besideARawListener(t, func(t *testing.T, s *Stream, p *rawPeer) {
		soon := unlimited()
		soon.Set(time.Now().Add(time.Second))
		n, err := s.Write(make([]byte, 100_000), soon)
		require.Equal(t, wire.MinRing, n)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		start := time.Now()
		require.NoError(t, s.Close(time.Minute), "its device has it all")
		require.Zero(t, time.Since(start))
	})
}
