package rconn_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/rconn"
)

// These peers keep to the handshake and then break the protocol: the tests drive their
// endpoints by hand.

// hostile is the raw end of a link whose other end is that of a Conn.
type hostile struct {
	ep   fabric.Endpoint
	ring fabric.Memory  // which the Conn may write to
	out  fabric.Memory  // from which the raw end writes to the Conn's ring
	peer wire.RingPlace // the Conn's ring

	// Control messages have places of their own in the second half of out, because several
	// may be under way at once.
	sent int
}

const hostileReceives = 8

var hostileOptions = fabric.Options{SendQueue: 64, RecvQueue: hostileReceives + credit.LinkControlReceives, RecvSize: wire.MessageSize, Sends: credit.LinkControlReceives, AckTimeout: rconn.AckTimeout, Retries: rconn.Retries}

// connectHostile makes a connection whose listening end is raw.
func (v simVenue) connectHostile(t testing.TB, cfg *rconn.Config) (*rconn.Conn, *hostile) {
	t.Helper()
	l, err := v.Listen(v.any(), 1)
	require.NoError(t, err)
	defer l.Close()
	raw := started(func() *hostile {
		ep, err := l.Accept()
		if err != nil {
			return nil
		}
		h := openHostile(t, ep)
		h.meet(t, ep.Private())
		require.NoError(t, ep.Accept(context.Background(), h.hello(wire.AcceptRecord)))
		return h
	})
	ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	c, err := rconn.Client(context.Background(), "rdma", ep, cfg)
	require.NoError(t, err)
	return c, (<-raw).closed(t, c)
}

// dialHostile makes a connection whose dialing end is raw.
func (v simVenue) dialHostile(t testing.TB, cfg *rconn.Config) (*rconn.Conn, *hostile) {
	t.Helper()
	l, err := v.Listen(v.any(), 1)
	require.NoError(t, err)
	defer l.Close()
	served := started(func() *rconn.Conn {
		ep, err := l.Accept()
		require.NoError(t, err)
		c, err := rconn.Server(context.Background(), "rdma", ep, cfg)
		require.NoError(t, err)
		return c
	})
	ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	h := openHostile(t, ep)
	answer, err := ep.Connect(context.Background(), h.hello(wire.OpenRecord))
	require.NoError(t, err)
	h.meet(t, answer)
	require.NoError(t, ep.Confirm())
	c := <-served
	return c, h.closed(t, c)
}

// closed closes both ends when the test is over.
func (h *hostile) closed(t testing.TB, c *rconn.Conn) *hostile {
	t.Cleanup(func() {
		_ = c.SetLinger(0)
		_ = c.Close()
		require.NoError(t, h.ep.Close())
	})
	return h
}

// quiet sends no probes, so that virtual time ends when every goroutine waits.
var quiet = &rconn.Config{KeepAlive: -1}

// openHostile registers the memory and posts the receives that the raw end announces.
func openHostile(t testing.TB, ep fabric.Endpoint) *hostile {
	h := &hostile{ep: ep}
	_, err := ep.Open(hostileOptions)
	require.NoError(t, err)
	h.ring, err = ep.Register(wire.MinRing, fabric.RemoteWrite)
	require.NoError(t, err)
	h.out, err = ep.Register(1<<20, fabric.LocalWrite)
	require.NoError(t, err)
	require.NoError(t, ep.PostRecv(hostileOptions.RecvQueue))
	return h
}

// hello returns the private data that announces them.
func (h *hostile) hello(typ wire.RecordType) []byte {
	b := append(wire.Hello{Receives: hostileReceives}.Append(nil), make([]byte, wire.RecordSize)...)
	wire.Record{Type: typ, Ring: h.place(wire.MinRing)}.Put(b[wire.HelloSize:])
	return b
}

func (h *hostile) place(size int) wire.RingPlace {
	return wire.RingPlace{Addr: h.ring.Addr(), RKey: h.ring.RKey(), Size: size}
}

func (h *hostile) meet(t testing.TB, private []byte) {
	_, r, err := wire.DecodeHello(private)
	require.NoError(t, err)
	h.peer = r.Ring
}

// post posts work requests, and ignores whether they succeed. It takes back what has
// completed. On an instant link the Conn sees all of them or none.
func (h *hostile) post(wr ...fabric.WorkRequest) {
	for i := range wr {
		wr[i].Signaled = true
	}
	_ = h.ep.PostSend(wr)
	var c [64]fabric.Completion
	for {
		n, err := h.ep.Poll(c[:])
		if n == 0 || err != nil {
			return
		}
		for _, wc := range c[:n] {
			if wc.Recv && wc.Status == fabric.OK {
				_ = h.ep.PostRecv(1)
			}
		}
	}
}

// data writes n bytes to the Conn's ring at the given position, with any immediate.
func (h *hostile) data(at uint64, n int, imm uint32) {
	wr := h.write(h.peer.Addr+at, h.peer.RKey, n)
	wr.Op, wr.Imm = fabric.WriteImm, imm
	h.post(wr)
}

// send sends a control message, or bytes that are none.
func (h *hostile) send(b []byte) { h.post(h.message(b)) }

func (h *hostile) message(b []byte) fabric.WorkRequest {
	out := h.out.Bytes()[len(h.out.Bytes())/2+h.sent%1000*wire.MessageSize:]
	h.sent++
	n := copy(out, b)
	return fabric.WorkRequest{Op: fabric.Send, Data: out[:n], Memory: h.out}
}

// control sends records, with a header that acknowledges nothing.
func (h *hostile) control(records ...wire.Record) { h.send(control(wire.Header{}, records...)) }

// acknowledge sends link credit.
func (h *hostile) acknowledge(data, records uint64) {
	h.send(control(wire.Header{Data: data, Records: records}))
}

func control(header wire.Header, records ...wire.Record) []byte {
	b := make([]byte, wire.HeaderSize+len(records)*wire.RecordSize)
	header.Put(b)
	for i, r := range records {
		r.Put(b[wire.HeaderSize+i*wire.RecordSize:])
	}
	return b
}

// raw returns a SEND of one record that begins with the given bytes.
func raw(record ...byte) []byte {
	b := make([]byte, wire.HeaderSize+wire.RecordSize)
	copy(b[wire.HeaderSize:], record)
	return b
}

// Records of the link's first stream.
func creditOf(n uint64) wire.Record { return wire.Record{Type: wire.CreditRecord, Position: n} }
func finAt(n uint64) wire.Record    { return wire.Record{Type: wire.FinRecord, Position: n} }
func resetAt(n uint64) wire.Record  { return wire.Record{Type: wire.ResetRecord, Position: n} }

var (
	finAck = wire.Record{Type: wire.FinAckRecord}
	goAway = wire.Record{Type: wire.GoAwayRecord}
)

const newRing = 1 << 31 // the flag of an immediate

type breach struct {
	says string
	do   func(c *rconn.Conn, h *hostile)
}

// anyPeersBreaches are breaches of a peer that dialed, and of one that was dialed.
var anyPeersBreaches = map[string]breach{
	"data beyond the ring's credit": {"credit ends at 4096", func(_ *rconn.Conn, h *hostile) {
		h.data(0, 4096, 0)
		h.data(0, 1, 0)
	}},
	"data over the ring's end": {"200 bytes at 4000 in a ring of 4096", func(c *rconn.Conn, h *hostile) {
		h.data(0, 4000, 0)
		_, _ = io.ReadFull(c, make([]byte, 4000))
		h.data(0, 200, 0)
	}},
	"more messages than receives": {"data message 9 when 8 were granted", func(_ *rconn.Conn, h *hostile) {
		wr := h.write(h.peer.Addr, h.peer.RKey, 1)
		wr.Op = fabric.WriteImm
		h.post(slices.Repeat([]fabric.WorkRequest{wr}, 9)...)
	}},
	"data for no stream":                 {"8 bytes of data: there is no stream 7", func(_ *rconn.Conn, h *hostile) { h.data(0, 8, 7) }},
	"data for the last number":           {"there is no stream 65535", func(_ *rconn.Conn, h *hostile) { h.data(0, 8, 65535) }},
	"data for a number out of range":     {"data for stream 65536", func(_ *rconn.Conn, h *hostile) { h.data(0, 8, 65536) }},
	"immediate huge":                     {"data for stream 1073741823", func(_ *rconn.Conn, h *hostile) { h.data(0, 8, 1<<32-1) }},
	"empty data":                         {"data message of 0 bytes", func(_ *rconn.Conn, h *hostile) { h.data(0, 0, 0) }},
	"empty data for no stream":           {"there is no stream 4", func(_ *rconn.Conn, h *hostile) { h.data(0, 0, 4) }},
	"data for a ring not offered":        {"new ring when none was offered", func(_ *rconn.Conn, h *hostile) { h.data(0, 8, newRing) }},
	"empty data for a ring not offered":  {"new ring when none was offered", func(_ *rconn.Conn, h *hostile) { h.data(0, 0, newRing) }},
	"data after FIN":                     {"behind the end", func(_ *rconn.Conn, h *hostile) { h.control(finAt(0)); h.data(0, 5, 0) }},
	"credit for what was not sent":       {"CREDIT for 1 bytes after 0, with 0 sent", func(_ *rconn.Conn, h *hostile) { h.control(creditOf(1)) }},
	"credit for nothing":                 {"CREDIT for 0 bytes after 0", func(_ *rconn.Conn, h *hostile) { h.control(creditOf(0)) }},
	"credit near 2^64":                   {"CREDIT for 18446744073709551615 bytes", func(_ *rconn.Conn, h *hostile) { h.control(creditOf(1<<64 - 1)) }},
	"credit for too many messages":       {"acknowledgement of {Data:1 Records:0} when {Data:0 Records:0} were sent", func(_ *rconn.Conn, h *hostile) { h.acknowledge(1, 0) }},
	"credit for too many records":        {"acknowledgement of {Data:0 Records:1} when {Data:0 Records:0} were sent", func(_ *rconn.Conn, h *hostile) { h.acknowledge(0, 1) }},
	"credit near 2^64 in messages":       {"acknowledgement of {Data:18446744073709551615", func(_ *rconn.Conn, h *hostile) { h.acknowledge(1<<64-1, 0) }},
	"credit near 2^64 in records":        {"Records:18446744073709551615}", func(_ *rconn.Conn, h *hostile) { h.acknowledge(0, 1<<64-1) }},
	"too many messages, beside a record": {"acknowledgement of {Data:1 Records:0}", func(_ *rconn.Conn, h *hostile) { h.send(control(wire.Header{Data: 1}, finAt(0))) }},
	"link credit for nothing":            {"link credit for 0 data messages and 0 record SENDs", func(_ *rconn.Conn, h *hostile) { h.acknowledge(0, 0) }},
	"link credit for too little": {"link credit for 1 data messages and 0 record SENDs", func(c *rconn.Conn, h *hostile) {
		_, _ = c.Write([]byte("x"))
		synctest.Wait()
		h.acknowledge(1, 0)
	}},
	"link credit twice": {"link credit for 0 data messages", func(c *rconn.Conn, h *hostile) {
		sendMessages(c, 2)
		h.acknowledge(2, 0)
		h.acknowledge(2, 0)
	}},
	"acknowledgement that runs backwards": {"acknowledgement runs backwards: {Data:1 Records:0} after {Data:2 Records:0}", func(c *rconn.Conn, h *hostile) {
		sendMessages(c, 2)
		h.acknowledge(2, 0)
		h.acknowledge(1, 0)
	}},
	"acknowledgement that runs backwards beside a record": {"acknowledgement runs backwards", func(c *rconn.Conn, h *hostile) {
		sendMessages(c, 2)
		h.acknowledge(2, 0)
		h.control(finAt(0))
	}},
	"more record SENDs than granted": {"record SEND 9 when 8 were granted", func(c *rconn.Conn, h *hostile) {
		_, _ = c.Write(make([]byte, 9))
		synctest.Wait()
		var wr []fabric.WorkRequest
		for n := range uint64(9) {
			wr = append(wr, h.message(control(wire.Header{}, creditOf(n+1))))
		}
		h.post(wr...)
	}},
	"record of type 0":               {"record of type 0", func(_ *rconn.Conn, h *hostile) { h.send(raw(0)) }},
	"record of type 255":             {"record of type 255", func(_ *rconn.Conn, h *hostile) { h.send(raw(255)) }},
	"record for a number too large":  {"FIN for stream 65536", func(_ *rconn.Conn, h *hostile) { h.control(wire.Record{Type: wire.FinRecord, Stream: 65536}) }},
	"a second record that is none":   {"record of type 0", func(_ *rconn.Conn, h *hostile) { h.control(finAt(0), wire.Record{}) }},
	"reserved bits set":              {"CREDIT with bits set", func(_ *rconn.Conn, h *hostile) { h.send(raw(4, 0, 0, 0, 1)) }},
	"FINACK with a total":            {"FINACK with bits set", func(_ *rconn.Conn, h *hostile) { h.send(raw([]byte{8, 15: 1}...)) }},
	"FIN with a ring":                {"FIN with bits set", func(_ *rconn.Conn, h *hostile) { h.send(raw([]byte{6, 18: 16}...)) }},
	"GOAWAY for a stream":            {"GOAWAY with bits set", func(_ *rconn.Conn, h *hostile) { h.send(raw(9, 0, 0, 1)) }},
	"GOAWAY twice":                   {"a second GOAWAY", func(_ *rconn.Conn, h *hostile) { h.control(goAway); h.control(goAway) }},
	"GOAWAY twice in a message":      {"a second GOAWAY", func(_ *rconn.Conn, h *hostile) { h.control(goAway, goAway) }},
	"empty control message":          {"control message of 0 bytes", func(_ *rconn.Conn, h *hostile) { h.send(nil) }},
	"short header":                   {"control message of 15 bytes", func(_ *rconn.Conn, h *hostile) { h.send(raw(6)[:15]) }},
	"short control message":          {"control message of 39 bytes", func(_ *rconn.Conn, h *hostile) { h.send(raw(6)[:39]) }},
	"record and a half":              {"control message of 52 bytes", func(_ *rconn.Conn, h *hostile) { h.send(append(raw(6), make([]byte, 12)...)) }},
	"long control message":           {"local length error", func(_ *rconn.Conn, h *hostile) { h.send(make([]byte, wire.MessageSize+1)) }},
	"a record too many":              {"local length error", func(_ *rconn.Conn, h *hostile) { h.send(make([]byte, wire.MessageSize+wire.RecordSize)) }},
	"very long control message":      {"local length error", func(_ *rconn.Conn, h *hostile) { h.send(make([]byte, 1<<18)) }},
	"garbage":                        {"control message of 24 bytes", func(_ *rconn.Conn, h *hostile) { h.send([]byte("\xab\xcd garbage garbage garba")) }},
	"garbage of a good length":       {"acknowledgement of", func(_ *rconn.Conn, h *hostile) { h.send([]byte("\xab\xcd garbage garbage garbage garbage again")) }},
	"FIN ahead of the stream":        {"the end of the stream after 1 bytes, with 0 received", func(_ *rconn.Conn, h *hostile) { h.control(finAt(1)) }},
	"FIN behind the stream":          {"the end of the stream after 0 bytes, with 5 received", func(_ *rconn.Conn, h *hostile) { h.data(0, 5, 0); h.control(finAt(0)) }},
	"FIN at 2^64":                    {"the end of the stream after 18446744073709551615 bytes", func(_ *rconn.Conn, h *hostile) { h.control(finAt(1<<64 - 1)) }},
	"FIN twice":                      {"FIN: a second end of the stream", func(_ *rconn.Conn, h *hostile) { h.control(finAt(0)); h.control(finAt(0)) }},
	"RESET with a wrong total":       {"RESET: the end of the stream after 3 bytes", func(_ *rconn.Conn, h *hostile) { h.control(resetAt(3)) }},
	"FINACK for no end":              {"FINACK for no end", func(_ *rconn.Conn, h *hostile) { h.control(finAck) }},
	"FINACK twice":                   {"FINACK for no end", func(c *rconn.Conn, h *hostile) { endWrites(c, 0); h.control(finAck, finAck) }},
	"CREDIT behind FINACK":           {"CREDIT behind FINACK", func(c *rconn.Conn, h *hostile) { endWrites(c, 5); h.control(finAck, creditOf(5)) }},
	"RING behind FINACK":             {"RING behind FINACK", func(c *rconn.Conn, h *hostile) { endWrites(c, 0); h.control(finAck, h.offer(wire.MinRing)) }},
	"RING before the first is taken": {"a second RING", func(_ *rconn.Conn, h *hostile) { h.control(h.offer(wire.MinRing), h.offer(wire.MinRing)) }},
	"RING that is too small":         {"RING with a ring of 2048 bytes", func(_ *rconn.Conn, h *hostile) { h.control(h.offer(wire.MinRing / 2)) }},
	"RING of an odd size":            {"RING with a ring of 4097 bytes", func(_ *rconn.Conn, h *hostile) { h.control(h.offer(wire.MinRing + 1)) }},
	"RING that is too large":         {"RING with a ring of 2147483648 bytes", func(_ *rconn.Conn, h *hostile) { r := h.offer(wire.MaxRing); r.Ring.Size *= 2; h.control(r) }},
	"ACCEPT that nobody waits for": {"ACCEPT for a stream that is open", func(_ *rconn.Conn, h *hostile) {
		h.control(wire.Record{Type: wire.AcceptRecord, Ring: h.place(wire.MinRing)})
	}},
	"REFUSE that nobody waits for": {"REFUSE for a stream that is open", func(_ *rconn.Conn, h *hostile) {
		h.control(wire.Record{Type: wire.RefuseRecord, Reason: wire.RefusedClosed})
	}},
	"OPEN of a number out of range": {"OPEN for stream 65536", func(_ *rconn.Conn, h *hostile) { h.control(h.open(wire.MaxStreams)) }},
	"OPEN with no ring": {"OPEN with a ring of 0 bytes", func(_ *rconn.Conn, h *hostile) {
		h.control(wire.Record{Type: wire.OpenRecord, Stream: 1})
	}},
	"ACCEPT for no stream": {"ACCEPT: there is no stream 3", func(_ *rconn.Conn, h *hostile) {
		h.control(wire.Record{Type: wire.AcceptRecord, Stream: 3, Ring: h.place(wire.MinRing)})
	}},
	"REFUSE for no stream": {"REFUSE: there is no stream 3", func(_ *rconn.Conn, h *hostile) {
		h.control(wire.Record{Type: wire.RefuseRecord, Stream: 3, Reason: wire.RefusedClosed})
	}},
	"RING for no stream": {"RING: there is no stream 3", func(_ *rconn.Conn, h *hostile) {
		h.control(wire.Record{Type: wire.RingRecord, Stream: 3, Ring: h.place(wire.MinRing)})
	}},
	"CREDIT for no stream": {"CREDIT: there is no stream 3", func(_ *rconn.Conn, h *hostile) { h.control(wire.Record{Type: wire.CreditRecord, Stream: 3}) }},
	"FIN for no stream":    {"FIN: there is no stream 3", func(_ *rconn.Conn, h *hostile) { h.control(wire.Record{Type: wire.FinRecord, Stream: 3}) }},
	"RESET for no stream":  {"RESET: there is no stream 3", func(_ *rconn.Conn, h *hostile) { h.control(wire.Record{Type: wire.ResetRecord, Stream: 3}) }},
	"FINACK for no stream": {"FINACK: there is no stream 3", func(_ *rconn.Conn, h *hostile) { h.control(wire.Record{Type: wire.FinAckRecord, Stream: 3}) }},
}

// listenersBreaches are those of a peer that was dialed, and dialersBreaches those of one
// that dialed.
var (
	listenersBreaches = map[string]breach{
		"OPEN from the passive side": {"OPEN from the side that was dialed", func(_ *rconn.Conn, h *hostile) { h.control(h.open(1)) }},
	}
	dialersBreaches = map[string]breach{
		"OPEN of a number in use": {"OPEN for stream 0, which exists", func(_ *rconn.Conn, h *hostile) { h.control(h.open(0)) }},
		"OPEN without a port": {"OPEN without a port", func(_ *rconn.Conn, h *hostile) {
			r := h.open(1)
			r.Port = 0
			h.control(r)
		}},
		"OPEN behind GOAWAY": {"OPEN behind GOAWAY", func(_ *rconn.Conn, h *hostile) { h.control(goAway, h.open(1)) }},
	}
)

func (h *hostile) open(stream uint32) wire.Record {
	return wire.Record{Type: wire.OpenRecord, Stream: stream, Ring: h.place(wire.MinRing), Port: 40001}
}

func (h *hostile) offer(size int) wire.Record {
	return wire.Record{Type: wire.RingRecord, Ring: h.place(size)}
}

// sendMessages has c send n data messages, one after the other.
func sendMessages(c *rconn.Conn, n int) {
	for range n {
		_, _ = c.Write([]byte("x"))
		synctest.Wait()
	}
}

// endWrites has c send n bytes and FIN.
func endWrites(c *rconn.Conn, n int) {
	_, _ = c.Write(make([]byte, n))
	_ = c.CloseWrite()
	synctest.Wait()
}

func TestPeerThatBreaksTheProtocolEndsItsOwnConnection(t *testing.T) {
	for name, b := range anyPeersBreaches {
		t.Run(name, func(t *testing.T) {
			t.Run("listening", func(t *testing.T) { requireEnds(t, simVenue.connectHostile, b) })
			t.Run("dialing", func(t *testing.T) { requireEnds(t, simVenue.dialHostile, b) })
		})
	}
	for name, b := range listenersBreaches {
		t.Run(name, func(t *testing.T) { requireEnds(t, simVenue.connectHostile, b) })
	}
	for name, b := range dialersBreaches {
		t.Run(name, func(t *testing.T) { requireEnds(t, simVenue.dialHostile, b) })
	}
}

// requireEnds requires that a breach of the protocol by the peer that connect makes ends
// the connection.
func requireEnds(t *testing.T, connect func(simVenue, testing.TB, *rconn.Config) (*rconn.Conn, *hostile), b breach) {
	small := &rconn.Config{RecvBuffer: 4 << 10, RecvQueue: 8, KeepAlive: -1}
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		bystander, other := v.connect(t, quiet, quiet)
		c, h := connect(v, t, small)
		b.do(c, h)
		v.parked()
		err := writeUntilError(c)
		if errors.Is(err, syscall.EPIPE) { // the peer has ended the stream in order
			_, err = c.Read(make([]byte, 1))
		}
		require.ErrorIs(t, err, syscall.EPROTO)
		require.ErrorContains(t, err, b.says)
		require.NoError(t, c.Close())
		requireUndisturbed(t, bystander, other)
	})
}

// requireUndisturbed sends bytes each way and ends the connection in order.
func requireUndisturbed(t *testing.T, a, b *rconn.Conn) {
	t.Helper()
	for _, c := range []*rconn.Conn{a, b} {
		_, err := c.Write([]byte("undisturbed"))
		require.NoError(t, err)
		require.NoError(t, c.CloseWrite())
	}
	for _, c := range []*rconn.Conn{a, b} {
		got, err := io.ReadAll(c)
		require.NoError(t, err)
		require.Equal(t, "undisturbed", string(got))
		require.NoError(t, c.Close())
	}
}

// A peer that sends more after RESET is disconnected, and the stream is reset all the same.
func TestPeerThatSendsAfterRESETIsDisconnected(t *testing.T) {
	for name, do := range map[string]func(h *hostile){
		"RESET":  func(h *hostile) { h.control(resetAt(0)) },
		"FIN":    func(h *hostile) { h.control(finAt(0)) },
		"data":   func(h *hostile) { h.data(0, 5, 0) },
		"CREDIT": func(h *hostile) { h.control(creditOf(5)) },
		"RING":   func(h *hostile) { h.control(h.offer(wire.MinRing)) },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				c, h := v.connectHostile(t, quiet)
				_, err := c.Write([]byte("hello"))
				require.NoError(t, err)
				h.control(resetAt(0))
				do(h)
				require.ErrorIs(t, h.ep.Wait(), fabric.ErrDisconnected)
				_, err = c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
			})
		})
	}
}

// When both ends have sent and acknowledged FIN, no record of the stream may follow,
// whether or not its owner has closed it.
func TestPeerThatSendsAfterBothFINsIsDisconnected(t *testing.T) {
	for name, do := range map[string]func(h *hostile){
		"data":   func(h *hostile) { h.data(0, 5, 0) },
		"CREDIT": func(h *hostile) { h.control(creditOf(5)) },
		"RING":   func(h *hostile) { h.control(h.offer(wire.MinRing)) },
		"FIN":    func(h *hostile) { h.control(finAt(0)) },
		"RESET":  func(h *hostile) { h.control(resetAt(0)) },
		"FINACK": func(h *hostile) { h.control(finAck) },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				c, h := v.connectHostile(t, quiet)
				require.NoError(t, c.CloseWrite())
				h.control(finAt(0), finAck)
				_, err := c.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
				do(h)
				require.ErrorIs(t, h.ep.Wait(), fabric.ErrDisconnected)
				_, err = c.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err, "the stream had ended well")
				require.NoError(t, c.Close())
			})
		})
	}
}

func TestBreachEndsWhatCanBeRead(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		pattern(0).fill(h.out.Bytes(), 0)
		h.data(0, 5, 0)
		h.data(5, 5, 1)
		h.data(10, 5, 0)
		n, err := pattern(0).receive(c, 0, 1000, random(t, 1))
		require.Equal(t, 5, n)
		require.ErrorIs(t, err, syscall.EPROTO)
	})
}

func TestBreachIsTheErrorThoughThePeerDisconnects(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		v.endpoint(c).HoldReceives(true) // the Conn sees the disconnect before what has arrived
		h.data(0, 5, 1)
		h.control(finAt(0))
		require.NoError(t, h.ep.Disconnect())
		synctest.Wait()
		v.endpoint(c).HoldReceives(false)
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.EPROTO)
	})
}

func TestPeerCannotWriteOutsideTheRing(t *testing.T) {
	for name, wr := range map[string]func(h, other *hostile) fabric.WorkRequest{
		"behind the ring": func(h, _ *hostile) fabric.WorkRequest {
			return h.write(h.peer.Addr+uint64(h.peer.Size), h.peer.RKey, 1)
		},
		"over the ring's end": func(h, _ *hostile) fabric.WorkRequest {
			return h.write(h.peer.Addr+uint64(h.peer.Size)-1, h.peer.RKey, 2)
		},
		"before the ring":       func(h, _ *hostile) fabric.WorkRequest { return h.write(h.peer.Addr-1, h.peer.RKey, 1) },
		"with no key":           func(h, _ *hostile) fabric.WorkRequest { return h.write(h.peer.Addr, 0, 1) },
		"another's ring":        func(h, o *hostile) fabric.WorkRequest { return h.write(o.peer.Addr, o.peer.RKey, 1) },
		"its ring, other's key": func(h, o *hostile) fabric.WorkRequest { return h.write(h.peer.Addr, o.peer.RKey, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				bystander, other := v.connectHostile(t, quiet)
				c, h := v.connectHostile(t, quiet)
				h.post(wr(h, other))
				_, err := c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.ErrorContains(t, err, "access violation")

				pattern(9).fill(other.out.Bytes(), 0)
				other.data(0, 100, 0)
				require.NoError(t, pattern(9).receiveExactly(bystander, 0, 100))
			})
		})
	}
}

func (h *hostile) write(addr uint64, rkey uint32, n int) fabric.WorkRequest {
	return fabric.WorkRequest{Op: fabric.Write, Data: h.out.Bytes()[:n], Memory: h.out, RemoteAddr: addr, RKey: rkey}
}

// The peer can write to the ring at any time. What has been read is no longer there, and
// neither is what io.Copy hands to a writer.
func TestPeerCannotChangeWhatHasBeenRead(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		h.data(0, 100, 0)
		enough := errors.New("enough")
		_, err := io.Copy(writerFunc(func(p []byte) (int, error) {
			before := bytes.Clone(p)
			for i := range h.out.Bytes() {
				h.out.Bytes()[i] = 0xff
			}
			h.post(h.write(h.peer.Addr, h.peer.RKey, 100))
			time.Sleep(2 * wan.Latency)
			require.Len(t, p, 100)
			require.Equal(t, before, p)
			return len(p), enough
		}), c)
		require.ErrorIs(t, err, enough)
	})
}

// What Peek returns is in the ring: the peer can change it while the application looks at
// it.
func TestPeerCanChangeWhatIsPeekedAt(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		pattern(1).fill(h.out.Bytes()[:100], 0)
		h.data(0, 100, 0)
		p, err := c.Peek(100)
		require.NoError(t, err)
		require.NoError(t, pattern(1).check(p, 0))
		pattern(2).fill(h.out.Bytes()[:100], 0)
		h.post(h.write(h.peer.Addr, h.peer.RKey, 100))
		time.Sleep(2 * wan.Latency)
		v.parked()
		require.NoError(t, pattern(2).check(p, 0))
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestCreditsMayNotRunBackwards(t *testing.T) {
	for _, again := range []uint64{59, 60} { // repeating a credit is no better
		inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
			c, h := v.connectHostile(t, quiet)
			_, err := c.Write(make([]byte, 100))
			require.NoError(t, err)
			v.parked()
			h.control(creditOf(60))
			v.parked()
			_, err = c.Write(make([]byte, 100))
			require.NoError(t, err)
			h.control(creditOf(again))
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.EPROTO)
			require.ErrorContains(t, err, fmt.Sprintf("CREDIT for %d bytes after 60", again))
		})
	}
}

func TestFloodOfMessagesDisturbsNoOtherConnection(t *testing.T) {
	for name, flood := range map[string]func(h *hostile){
		"link credit":  func(h *hostile) { h.acknowledge(0, 0) },
		"records":      func(h *hostile) { h.control(creditOf(1)) },
		"GOAWAYs":      func(h *hostile) { h.control(goAway) },
		"offers":       func(h *hostile) { h.control(h.offer(wire.MinRing)) },
		"data":         func(h *hostile) { h.data(0, 1000, 0) },
		"empty data":   func(h *hostile) { h.data(0, 0, 0) },
		"empty SENDs":  func(h *hostile) { h.send(nil) },
		"OPENs":        func(h *hostile) { h.control(h.open(uint32(h.sent) % wire.MaxStreams)) },
		"ends":         func(h *hostile) { h.control(finAt(0), finAck) },
		"full records": func(h *hostile) { h.control(slices.Repeat([]wire.Record{finAck}, wire.MaxRecords)...) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, link := range []sim.Link{{}, wan} {
				withHostilePeers(t, link, func(t *testing.T, v simVenue) {
					a, b := v.connect(t, quiet, quiet)
					c, h := v.connectHostile(t, &rconn.Config{RecvBuffer: 4 << 10, KeepAlive: -1})
					for range 10_000 {
						flood(h)
					}
					time.Sleep(time.Second)
					requireUndisturbed(t, a, b)
					require.ErrorIs(t, writeUntilError(c), syscall.EPROTO, "the flood has ended its own link")
					require.NoError(t, c.Close())
				})
			}
		})
	}
}

// A Conn that has ended its stream ignores offers. A peer that keeps to its windows can go
// on to make them: each costs what a message costs, and no other connection waits for it.
func TestFloodWithinItsWindowsHoldsNothingUp(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		a, b := v.connect(t, quiet, quiet)
		c, h := v.connectHostile(t, quiet)
		require.NoError(t, c.CloseWrite())
		v.parked()
		read := started(func() int {
			n, err := c.Read(make([]byte, 10))
			require.NoError(t, err)
			return n
		})
		for range 1000 {
			h.control(slices.Repeat([]wire.Record{h.offer(wire.MinRing)}, wire.MaxRecords)...)
			v.parked()
		}
		require.Less(t, c.Link().WorkRequests, uint64(1000/credit.RecordCredit+10), "link credit, and no answer to each")
		h.data(0, 5, 0)
		require.Equal(t, 5, <-read)
		require.NoError(t, c.Close())
		requireUndisturbed(t, a, b)
	})
}

// The peer receives all that it is sent, and never sends anything.
func TestPeerThatIsSilentHoldsUpItsOwnConnectionOnly(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, _ := v.connectHostile(t, quiet)
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := c.Write(make([]byte, 100_000))
		require.Equal(t, wire.MinRing, n)
		requireTimeout(t, err)
		start := time.Now()
		require.NoError(t, c.Close(), "its device has it all")
		require.LessOrEqual(t, time.Since(start), 2*wan.Latency)
		time.Sleep(6 * time.Second)
		require.Nil(t, v.endpoint(c), "torn down without FINACK")
	})
}

// hello returns private data with a record that offers a ring.
func hello(magic uint32, version uint16, receives uint32, typ wire.RecordType, stream, ring uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.BigEndian.AppendUint16(b, version)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, receives)
	b = binary.BigEndian.AppendUint32(b, uint32(typ)<<24|stream)
	b = binary.BigEndian.AppendUint32(b, 0x100)
	b = binary.BigEndian.AppendUint64(b, 0x1000)
	b = binary.BigEndian.AppendUint32(b, ring)
	return append(b, 0, 0, 0, 0)
}

const magic = 0x724e4554

type badHello struct {
	hello []byte
	says  string
}

// badHellos are handshakes that are refused, and the reason that is given. A good one has a
// record of the given type.
func badHellos(typ wire.RecordType) map[string]badHello {
	good := hello(magic, 2, 4, typ, 0, 4096)
	receives := func(n uint32) []byte { return hello(magic, 2, n, typ, 0, 4096) }
	ring := func(n uint32) []byte { return hello(magic, 2, 4, typ, 0, n) }
	other := wire.OpenRecord + wire.AcceptRecord - typ
	return map[string]badHello{
		"empty":              {nil, "are not ringnet's"},
		"garbage":            {[]byte("GET / HTTP/1.1\r\n"), "are not ringnet's"},
		"wrong magic":        {hello(magic+1, 2, 4, typ, 0, 4096), "are not ringnet's"},
		"version 0":          {hello(magic, 0, 4, typ, 0, 4096), "version 0 of the ringnet protocol was offered, and the side that refuses it speaks version 2"},
		"version 1":          {hello(magic, 1, 4, typ, 0, 4096), "version 1 of the ringnet"},
		"version 3":          {hello(magic, 3, 4, typ, 0, 4096), "version 3 of the ringnet"},
		"a resumption":       {append(good[:6:6], append([]byte{0x80, 1}, good[8:]...)...), "about a link to be taken up again"},
		"short":              {good[:20], "ring of 0 bytes"}, // padded by the connection manager
		"no record":          {good[:12], "record of type 0"},
		"no ring":            {ring(0), "ring of 0 bytes"},
		"ring too small":     {ring(2048), "ring of 2048 bytes"},
		"ring too large":     {ring(1 << 31), "ring of 2147483648 bytes"},
		"ring no power of 2": {ring(4096 + 512), "ring of 4608 bytes"},
		"no receives":        {receives(0), "0 receives"},
		"receives not by 4":  {receives(6), "6 receives"},
		"too many receives":  {receives(1 << 20), "1048576 receives"},
		"receives as -4":     {receives(1<<32 - 4), "4294967292 receives"},
		"another stream":     {hello(magic, 2, 4, typ, 1, 4096), "for stream 1 in a"},
		"a stream too large": {hello(magic, 2, 4, typ, 1<<16, 4096), "for stream 65536"},
		"the other's record": {hello(magic, 2, 4, other, 0, 4096), other.String() + " for stream 0 in a"},
		"RING":               {hello(magic, 2, 4, wire.RingRecord, 0, 4096), "RING for stream 0 in a"},
		"GOAWAY":             {append(good[:12:12], raw(9)[wire.HeaderSize:]...), "GOAWAY for stream 0 in a"},
		"REFUSE":             {append(good[:12:12], raw([]byte{3, 7: 1}...)[wire.HeaderSize:]...), "REFUSE for stream 0 in a"},
	}
}

func TestHandshakeRefusesABadRequestWithTheReason(t *testing.T) {
	for name, bad := range badHellos(wire.OpenRecord) {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				l, err := v.Listen(v.any(), 1)
				require.NoError(t, err)
				defer l.Close()
				served := started(func() error {
					ep, err := l.Accept()
					if err != nil {
						return err
					}
					_, err = rconn.Server(context.Background(), "rdma", ep, nil)
					return err
				})
				ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
				require.NoError(t, err)
				defer ep.Close()
				_, err = ep.Open(hostileOptions)
				require.NoError(t, err)
				_, err = ep.Connect(context.Background(), bad.hello)
				var reject *fabric.RejectError
				require.ErrorAs(t, err, &reject)
				require.Equal(t, fabric.RejectConsumer, reject.Reason)
				requireReason(t, bad.says, reject)

				err = <-served
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorContains(t, err, bad.says)
			})
		})
	}
}

// requireReason requires that a rejection gives a reason that the peer can read: it does not
// call its reader the peer.
func requireReason(t *testing.T, says string, reject *fabric.RejectError) {
	t.Helper()
	reason := wire.DecodeReject(reject.Private).Reason
	require.Contains(t, reason, says)
	require.NotContains(t, reason, "peer")
}

func TestHandshakeRefusesABadAnswerWithTheReason(t *testing.T) {
	for name, bad := range badHellos(wire.AcceptRecord) {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				l, err := v.Listen(v.any(), 1)
				require.NoError(t, err)
				defer l.Close()
				served := started(func() error {
					ep, err := l.Accept()
					if err != nil {
						return err
					}
					defer ep.Close()
					if _, err := ep.Open(hostileOptions); err != nil {
						return err
					}
					return ep.Accept(context.Background(), bad.hello)
				})
				ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
				require.NoError(t, err)
				_, err = rconn.Client(context.Background(), "rdma", ep, nil)
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorContains(t, err, bad.says)

				var reject *fabric.RejectError
				require.ErrorAs(t, <-served, &reject)
				requireReason(t, bad.says, reject)
			})
		})
	}
}

func TestHandshakeRefusalIsAnErrorWithTheReason(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		l, err := v.Listen(v.any(), 1)
		require.NoError(t, err)
		defer l.Close()
		go func() {
			if ep, err := l.Accept(); err == nil {
				_ = ep.Reject(wire.Reject{Reason: "closed for the holidays"}.Append(nil))
				_ = ep.Close()
			}
		}()
		ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		_, err = rconn.Client(context.Background(), "rdma", ep, nil)
		var refused *rconn.RefusedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "closed for the holidays", refused.Reason)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestDialWhereNobodyListensIsRefused(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		l, err := v.Listen(v.any(), 1)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		_, err = rconn.Client(context.Background(), "rdma", ep, nil)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestHandshakeHasATimeLimit(t *testing.T) {
	cfg := &rconn.Config{HandshakeTimeout: 3 * time.Second}
	t.Run("no answer", func(t *testing.T) {
		inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
			v.Blackhole(v.addr)
			ep, err := v.Dial(context.Background(), netip.AddrPort{}, netip.AddrPortFrom(v.addr, 1))
			require.NoError(t, err)
			start := time.Now()
			_, err = rconn.Client(context.Background(), "rdma", ep, cfg)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, cfg.HandshakeTimeout, time.Since(start))
		})
	})
	t.Run("no confirmation", func(t *testing.T) {
		inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
			l, err := v.Listen(v.any(), 1)
			require.NoError(t, err)
			defer l.Close()
			dialer, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
			require.NoError(t, err)
			_, err = dialer.Open(hostileOptions)
			require.NoError(t, err)
			answered := started(func() error {
				_, err := dialer.Connect(context.Background(), hello(magic, wire.Version, 4, wire.OpenRecord, 0, 4096))
				return err
			})
			ep, err := l.Accept()
			require.NoError(t, err)
			start := time.Now()
			_, err = rconn.Server(context.Background(), "rdma", ep, cfg)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, cfg.HandshakeTimeout, time.Since(start))
			require.NoError(t, <-answered)
			require.NoError(t, dialer.Close())
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
			v.Blackhole(v.addr)
			ep, err := v.Dial(context.Background(), netip.AddrPort{}, netip.AddrPortFrom(v.addr, 1))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			_, err = rconn.Client(ctx, "rdma", ep, nil)
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, time.Second, time.Since(start))
		})
	})
}

// A failure at any step of the set-up is an error at this end and a refusal at the other,
// and leaves nothing open.
func TestSetUpThatFailsIsAnErrorAtBothEnds(t *testing.T) {
	broken := syscall.ENOMEM
	for _, side := range []string{"dialer", "listener"} {
		for name, faults := range map[string]func(mine func(*sim.Endpoint) bool) sim.Faults{
			"Open": func(mine func(*sim.Endpoint) bool) sim.Faults {
				return sim.Faults{Open: func(e *sim.Endpoint) error {
					if mine(e) {
						return broken
					}
					return nil
				}}
			},
			"Register": func(mine func(*sim.Endpoint) bool) sim.Faults {
				return sim.Faults{Register: func(e *sim.Endpoint, _ int) error {
					if mine(e) {
						return broken
					}
					return nil
				}}
			},
		} {
			t.Run(side+" "+name, func(t *testing.T) {
				inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
					l, err := v.Listen(v.any(), 1)
					require.NoError(t, err)
					defer l.Close()
					v.SetFaults(faults(func(e *sim.Endpoint) bool { return (e.LocalAddr() == l.Addr()) == (side == "listener") }))
					_, _, err = v.connectTo(l, nil, nil)
					if side == "dialer" {
						require.ErrorIs(t, err, broken)
					} else {
						require.ErrorIs(t, err, syscall.ECONNREFUSED)
						require.ErrorContains(t, err, broken.Error())
					}
				})
			})
		}
	}
}

func FuzzPeer(f *testing.F) {
	for i := range byte(24) {
		f.Add([]byte{i, 1, 2, 3, i, 5, 0, 1, 15, 255, i, 255})
	}
	f.Fuzz(func(t *testing.T, actions []byte) {
		virtually(t, sim.Link{}, func(t *testing.T, v simVenue) {
			connect := v.connectHostile
			if len(actions)%2 == 1 {
				connect = v.dialHostile
			}
			c, h := connect(t, &rconn.Config{RecvBuffer: 4 << 10, SendBuffer: 4 << 10, RecvQueue: 4, SendQueue: 16})
			read := started(func() error { _, err := io.Copy(io.Discard, struct{ io.Reader }{c}); return err })
			for ; len(actions) >= 4; actions = actions[4:] {
				h.act(actions[0], actions[1], binary.BigEndian.Uint16(actions[2:]))
				// A peer that writes where the Conn is reading spoils only its own bytes.
				// The race detector would report it, because here the peer's writes are
				// those of a goroutine, and not of a device.
				if raceEnabled || actions[0]&32 != 0 {
					v.parked()
				}
			}
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
			_, err := c.Write(make([]byte, 10_000))
			require.Error(t, err, "there is not so much room")
			require.NoError(t, c.SetLinger(1))
			_ = c.Close()
			<-read
			time.Sleep(10 * time.Second)
			require.Nil(t, v.endpoint(c), "torn down")
		})
	})
}

// act does one thing that a peer may do, whether or not the protocol allows it.
func (h *hostile) act(what, a byte, b uint16) {
	n := int(b)
	switch what % 24 {
	case 0, 1, 2, 3: // as the protocol has it, if there is room and a is the position
		h.data(uint64(a), 1+n%64, 0)
	case 4:
		h.data(uint64(a)<<4, n, 0)
	case 5:
		h.data(uint64(a), n%16, uint32(b))
	case 6:
		h.data(uint64(a), n%16, newRing|uint32(a%2))
	case 7:
		h.control(creditOf(uint64(n)))
	case 8:
		h.control(creditOf(-uint64(n)))
	case 9:
		h.control(finAt(uint64(n % 256)))
	case 10:
		h.control(finAck)
	case 11:
		h.control(resetAt(uint64(n % 256)))
	case 12:
		h.send(h.out.Bytes()[a : int(a)+n%64])
	case 13:
		h.post(h.write(h.peer.Addr+uint64(n), h.peer.RKey, int(a)))
	case 14:
		_ = h.ep.PostRecv(1)
	case 15:
		_ = h.ep.Disconnect()
	case 16:
		h.acknowledge(uint64(a), uint64(n%16))
	case 17:
		h.send(control(wire.Header{Data: uint64(a % 8), Records: uint64(n % 8)}, creditOf(uint64(n))))
	case 18:
		h.control(h.open(uint32(n)))
	case 19:
		h.control(h.offer(wire.MinRing << (a % 4)))
	case 20:
		h.control(goAway)
	case 21:
		h.control(wire.Record{Type: wire.AcceptRecord + wire.RecordType(a%2), Ring: h.place(wire.MinRing), Reason: wire.RefusedTaken})
	case 22:
		h.control(finAt(uint64(n%256)), finAck, goAway)
	case 23: // any record for any stream
		h.send(raw(a%12, 0, 0, byte(n%3), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(n>>8)))
	}
}
