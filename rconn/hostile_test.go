package rconn_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
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

// Peers that keep the handshake and then break the protocol: endpoints driven
// by hand.

// hostile is the raw end of a connection whose other end is a Conn.
type hostile struct {
	ep    fabric.Endpoint
	ring  fabric.Memory // the Conn's data would go here
	out   fabric.Memory
	peer  wire.Hello // the Conn's
	hello wire.Hello // what the Conn was told

	// sent control messages each have a place of their own in the second half
	// of out, for they may be under way together.
	sent int
}

var hostileOptions = fabric.Options{SendQueue: 64, RecvQueue: 4 + credit.ControlReceives, RecvSize: wire.ControlSize, AckTimeout: rconn.AckTimeout, Retries: rconn.Retries}

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
		h := &hostile{ep: ep}
		h.open(t)
		h.peer, err = wire.DecodeHello(ep.Private())
		require.NoError(t, err)
		require.NoError(t, ep.Accept(context.Background(), h.hello.Append(nil)))
		return h
	})
	ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	c, err := rconn.Client(context.Background(), "rdma", ep, cfg)
	require.NoError(t, err)
	h := <-raw
	t.Cleanup(func() {
		_ = c.SetLinger(0)
		_ = c.Close()
		require.NoError(t, h.ep.Close())
	})
	return c, h
}

// quiet sends no probes, so that virtual time ends when everybody waits.
var quiet = &rconn.Config{KeepAlive: -1}

// open gives the raw end the memory and receives that it announces.
func (h *hostile) open(t testing.TB) {
	_, err := h.ep.Open(hostileOptions)
	require.NoError(t, err)
	h.ring, err = h.ep.Register(wire.MinRing, fabric.RemoteWrite)
	require.NoError(t, err)
	h.out, err = h.ep.Register(1<<20, fabric.LocalWrite)
	require.NoError(t, err)
	require.NoError(t, h.ep.PostRecv(hostileOptions.RecvQueue))
	h.hello = wire.Hello{Addr: h.ring.Addr(), RKey: h.ring.RKey(), Ring: wire.MinRing, Receives: 4}
}

// post posts work requests, whatever comes of them, and takes back what has
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
	}
}

// data writes n bytes to the Conn's ring at the given position, with any
// immediate.
func (h *hostile) data(at uint64, n int, imm uint32) {
	wr := h.write(h.peer.Addr+at, h.peer.RKey, n)
	wr.Op, wr.Imm = fabric.WriteImm, imm
	h.post(wr)
}

// send sends n bytes of a control message of the given kind, or of nonsense.
func (h *hostile) send(b []byte) {
	out := h.out.Bytes()[len(h.out.Bytes())/2+h.sent%1000*wire.ControlSize:]
	h.sent++
	n := copy(out, b)
	h.post(fabric.WorkRequest{Op: fabric.Send, Data: out[:n], Memory: h.out})
}

func (h *hostile) control(t wire.Type, bytes, messages uint64) {
	b := make([]byte, wire.ControlSize)
	wire.Control{Type: t, Bytes: bytes, Messages: messages}.Put(b)
	h.send(b)
}

func raw(typ byte, rest ...byte) []byte {
	b := make([]byte, wire.ControlSize)
	b[0] = typ
	copy(b[1:], rest)
	return b
}

func TestAPeerThatBreaksTheProtocolEndsItsOwnConnection(t *testing.T) {
	small := &rconn.Config{RecvBuffer: 4 << 10, RecvQueue: 8, KeepAlive: -1}
	for name, test := range map[string]struct {
		says string
		do   func(h *hostile)
	}{
		"data beyond the ring's credit": {"credit ends at 4096", func(h *hostile) {
			h.data(0, 4096, 4096)
			h.data(0, 1, 1)
		}},
		"more messages than receives": {"data message 9 when credit ends at 8", func(h *hostile) {
			wr := h.write(h.peer.Addr, h.peer.RKey, 1)
			wr.Op, wr.Imm = fabric.WriteImm, 1
			h.post(slices.Repeat([]fabric.WorkRequest{wr}, 9)...)
		}},
		"immediate too small":          {"data message of 8 bytes with immediate 7", func(h *hostile) { h.data(0, 8, 7) }},
		"immediate too large":          {"data message of 8 bytes with immediate 9", func(h *hostile) { h.data(0, 8, 9) }},
		"immediate huge":               {"data message of 8 bytes with immediate 4294967295", func(h *hostile) { h.data(0, 8, 1<<32-1) }},
		"empty data":                   {"data message of 0 bytes", func(h *hostile) { h.data(0, 0, 0) }},
		"empty data with an immediate": {"data message of 0 bytes", func(h *hostile) { h.data(0, 0, 4) }},
		"credit for what was not sent": {"credit for 1 bytes", func(h *hostile) { h.control(wire.Credit, 1, 0) }},
		"credit for too many messages": {"1 messages when", func(h *hostile) { h.control(wire.Credit, 0, 1) }},
		"credit near 2^64":             {"credit for 18446744073709551615 bytes", func(h *hostile) { h.control(wire.Credit, 1<<64-1, 0) }},
		"credit near 2^64 in messages": {"18446744073709551615 messages", func(h *hostile) { h.control(wire.Credit, 0, 1<<64-1) }},
		"control message of type 0":    {"unknown type 0", func(h *hostile) { h.send(raw(0)) }},
		"control message of type 5":    {"unknown type 5", func(h *hostile) { h.send(raw(5)) }},
		"control message of type 255":  {"unknown type 255", func(h *hostile) { h.send(raw(255)) }},
		"reserved bits set":            {"CREDIT with bits set", func(h *hostile) { h.send(raw(1, 0, 0, 1)) }},
		"FIN with messages":            {"FIN with bits set", func(h *hostile) { h.control(wire.Fin, 0, 1) }},
		"empty control message":        {"control message of 0 bytes", func(h *hostile) { h.send(nil) }},
		"short control message":        {"control message of 23 bytes", func(h *hostile) { h.send(raw(2)[:23]) }},
		"long control message":         {"local length error", func(h *hostile) { h.send(make([]byte, wire.ControlSize+1)) }},
		"very long control message":    {"local length error", func(h *hostile) { h.send(make([]byte, 1<<18)) }},
		"garbage":                      {"unknown type 171", func(h *hostile) { h.send([]byte("\xab\xcd garbage garbage garba")) }},
		"FIN ahead of the stream":      {"FIN after 1 bytes, with 0 received", func(h *hostile) { h.control(wire.Fin, 1, 0) }},
		"FIN behind the stream":        {"FIN after 0 bytes, with 5 received", func(h *hostile) { h.data(0, 5, 5); h.control(wire.Fin, 0, 0) }},
		"FIN at 2^64":                  {"FIN after 18446744073709551615 bytes", func(h *hostile) { h.control(wire.Fin, 1<<64-1, 0) }},
		"FIN twice":                    {"FIN behind the end", func(h *hostile) { h.control(wire.Fin, 0, 0); h.control(wire.Fin, 0, 0) }},
		"RESET with a wrong total":     {"RESET after 3 bytes", func(h *hostile) { h.control(wire.Reset, 3, 0) }},
		"data after FIN":               {"behind the end", func(h *hostile) { h.control(wire.Fin, 0, 0); h.data(0, 5, 5) }},
		"FINACK for no FIN":            {"FINACK for no FIN", func(h *hostile) { h.control(wire.FinAck, 0, 0) }},
		"FINACK with a total":          {"FINACK with bits set", func(h *hostile) { h.control(wire.FinAck, 1, 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
				bystander, other := v.connect(t, quiet, quiet)
				c, h := v.connectHostile(t, small)
				test.do(h)
				v.parked()
				err := writeUntilError(c)
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorContains(t, err, test.says)
				require.NoError(t, c.Close())
				requireUndisturbed(t, bystander, other)
			})
		})
	}
}

// requireUndisturbed sends something each way and ends the connection well.
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

// Whoever has said RESET and goes on is reset all the same, and disconnected.
func TestAPeerThatGoesOnAfterRESETIsDisconnected(t *testing.T) {
	for name, do := range map[string]func(h *hostile){
		"RESET": func(h *hostile) { h.control(wire.Reset, 0, 0) },
		"FIN":   func(h *hostile) { h.control(wire.Fin, 0, 0) },
		"data":  func(h *hostile) { h.data(0, 5, 5) },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				c, h := v.connectHostile(t, quiet)
				h.control(wire.Reset, 0, 0)
				do(h)
				require.ErrorIs(t, h.ep.Wait(), fabric.ErrDisconnected)
				_, err := c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
			})
		})
	}
}

func TestNothingIsReadBehindABreachOfTheProtocol(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		pattern(0).fill(h.out.Bytes(), 0)
		h.data(0, 5, 5)
		h.data(5, 5, 6)
		h.data(10, 5, 5)
		n, err := pattern(0).receive(c, 0, 1000, random(t, 1))
		require.Equal(t, 5, n)
		require.ErrorIs(t, err, syscall.EPROTO)
	})
}

func TestABreachIsNotForgottenWhenThePeerHasDisconnectedToo(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		v.endpoint(c).HoldReceives(true) // the disconnect is seen first
		h.data(0, 5, 6)
		h.control(wire.Fin, 0, 0)
		require.NoError(t, h.ep.Disconnect())
		synctest.Wait()
		v.endpoint(c).HoldReceives(false)
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.EPROTO)
	})
}

func TestAPeerCannotWriteOutsideTheRing(t *testing.T) {
	for name, wr := range map[string]func(h, other *hostile) fabric.WorkRequest{
		"behind the ring": func(h, _ *hostile) fabric.WorkRequest {
			return h.write(h.peer.Addr+uint64(h.peer.Ring), h.peer.RKey, 1)
		},
		"over the ring's end": func(h, _ *hostile) fabric.WorkRequest {
			return h.write(h.peer.Addr+uint64(h.peer.Ring)-1, h.peer.RKey, 2)
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
				other.data(0, 100, 100)
				require.NoError(t, pattern(9).receiveExactly(bystander, 0, 100))
			})
		})
	}
}

func (h *hostile) write(addr uint64, rkey uint32, n int) fabric.WorkRequest {
	return fabric.WorkRequest{Op: fabric.Write, Data: h.out.Bytes()[:n], Memory: h.out, RemoteAddr: addr, RKey: rkey}
}

// The ring is the peer's to write to at any time, but what has been read is not
// in it, and neither is what io.Copy hands to a writer.
func TestAPeerCannotChangeWhatHasBeenRead(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		h.data(0, 100, 100)
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

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestCreditsMayNotRunBackwards(t *testing.T) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		_, err := c.Write(make([]byte, 100))
		require.NoError(t, err)
		v.parked()
		h.control(wire.Credit, 60, 1)
		h.control(wire.Credit, 60, 1) // says nothing new, which is no harm
		v.parked()
		_, err = c.Write(make([]byte, 100))
		require.NoError(t, err)
		h.control(wire.Credit, 59, 1)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.EPROTO)
		require.ErrorContains(t, err, "credit runs backwards")
	})
}

func TestAFloodOfControlMessagesDisturbsNobodyElse(t *testing.T) {
	for _, link := range []sim.Link{{}, wan} {
		withHostilePeers(t, link, func(t *testing.T, v simVenue) {
			a, b := v.connect(t, quiet, quiet)
			c, h := v.connectHostile(t, quiet)
			for range 10_000 {
				h.control(wire.Credit, 0, 0)
			}
			time.Sleep(time.Second)
			requireUndisturbed(t, a, b)
			require.NoError(t, c.SetLinger(1))
			_ = c.Close() // for its own fate the flood may be to blame
		})
	}
}

// A peer that takes what it is sent and never says anything.
func TestASilentPeerHoldsNothingUpButItsOwnConnection(t *testing.T) {
	inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
		c, h := v.connectHostile(t, quiet)
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := c.Write(make([]byte, 100_000))
		require.Equal(t, h.hello.Ring, n)
		requireTimeout(t, err)
		start := time.Now()
		require.NoError(t, c.Close(), "its device has it all")
		require.LessOrEqual(t, time.Since(start), 2*wan.Latency)
		time.Sleep(6 * time.Second)
		require.Nil(t, v.endpoint(c), "torn down without FINACK")
	})
}

func hello(magic uint32, version uint16, ring, receives uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.BigEndian.AppendUint16(b, version)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint64(b, 0x1000)
	b = binary.BigEndian.AppendUint32(b, 0x100)
	b = binary.BigEndian.AppendUint32(b, ring)
	b = binary.BigEndian.AppendUint32(b, receives)
	return append(b, 0, 0, 0, 0)
}

const magic = 0x724e4554

// badHellos are handshakes that are refused, and what is said about them.
var badHellos = map[string]struct {
	hello []byte
	says  string
}{
	"empty":              {nil, "does not speak ringnet"},
	"garbage":            {[]byte("GET / HTTP/1.1\r\n"), "does not speak ringnet"},
	"wrong magic":        {hello(magic+1, 1, 4096, 4), "does not speak ringnet"},
	"version 0":          {hello(magic, 0, 4096, 4), "speaks version 0"},
	"version 2":          {hello(magic, 2, 4096, 4), "speaks version 2"},
	"short":              {hello(magic, 1, 4096, 4)[:20], "ring of 0 bytes"}, // padded by the connection manager
	"no ring":            {hello(magic, 1, 0, 4), "ring of 0 bytes"},
	"ring too small":     {hello(magic, 1, 2048, 4), "ring of 2048 bytes"},
	"ring too large":     {hello(magic, 1, 1<<31, 4), "ring of 2147483648 bytes"},
	"ring no power of 2": {hello(magic, 1, 4096+512, 4), "ring of 4608 bytes"},
	"no receives":        {hello(magic, 1, 4096, 0), "0 receives"},
	"receives not by 4":  {hello(magic, 1, 4096, 6), "6 receives"},
	"too many receives":  {hello(magic, 1, 4096, 1<<20), "1048576 receives"},
	"receives as -4":     {hello(magic, 1, 4096, 1<<32-4), "4294967292 receives"},
}

func TestABadRequestIsRefusedAndToldWhy(t *testing.T) {
	for name, bad := range badHellos {
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
				require.Contains(t, wire.DecodeReject(reject.Private).Reason, bad.says)

				err = <-served
				require.ErrorIs(t, err, syscall.EPROTO)
				require.ErrorContains(t, err, bad.says)
			})
		})
	}
}

func TestABadAnswerIsRefusedAndToldWhy(t *testing.T) {
	for name, bad := range badHellos {
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
				require.Contains(t, wire.DecodeReject(reject.Private).Reason, bad.says)
			})
		})
	}
}

func TestARefusalRepeatsTheReason(t *testing.T) {
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

func TestNobodyListensIsRefused(t *testing.T) {
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

func TestHandshakesHaveATimeLimit(t *testing.T) {
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
				_, err := dialer.Connect(context.Background(), hello(magic, 1, 4096, 4))
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

// A failure at any step of the set-up is an error here, a refusal there, and
// leaves nothing behind.
func TestAFailedSetUpIsAnErrorOnBothSides(t *testing.T) {
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
	for i := range byte(16) {
		f.Add([]byte{i, 1, 2, 3, i, 5, 0, 1, 15, 255, i, 255})
	}
	f.Fuzz(func(t *testing.T, actions []byte) {
		virtually(t, sim.Link{}, func(t *testing.T, v simVenue) {
			c, h := v.connectHostile(t, &rconn.Config{RecvBuffer: 4 << 10, SendBuffer: 4 << 10, RecvQueue: 4, SendQueue: 16})
			read := started(func() error { _, err := io.Copy(io.Discard, struct{ io.Reader }{c}); return err })
			for ; len(actions) >= 4; actions = actions[4:] {
				h.act(actions[0], actions[1], binary.BigEndian.Uint16(actions[2:]))
				// A peer that writes where the Conn is reading spoils its own
				// bytes and no more, but the race detector, which would not
				// see a device do it, holds it against the Conn.
				if raceEnabled || actions[0]&16 != 0 {
					v.parked()
				}
			}
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
			_, err := c.Write(make([]byte, 10_000))
			require.Error(t, err, "there is not so much room")
			require.NoError(t, c.SetLinger(1))
			_ = c.Close()
			_ = <-read
			time.Sleep(10 * time.Second)
			require.Nil(t, v.endpoint(c), "torn down")
		})
	})
}

// act does one thing that a peer may do, by the book or not.
func (h *hostile) act(what, a byte, b uint16) {
	n := int(b)
	switch what % 16 {
	case 0, 1, 2, 3: // as it should be, if there is room and a is the position
		h.data(uint64(a), 1+n%64, uint32(1+n%64))
	case 4:
		h.data(uint64(a)<<4, n, uint32(n))
	case 5:
		h.data(uint64(a), n%16, uint32(b))
	case 6:
		h.control(wire.Credit, uint64(a), uint64(n))
	case 7:
		h.control(wire.Credit, uint64(n), uint64(a))
	case 8:
		h.control(wire.Credit, -uint64(n), -uint64(a))
	case 9:
		h.control(wire.Fin, uint64(n%256), 0)
	case 10:
		h.control(wire.FinAck, uint64(a%2), 0)
	case 11:
		h.control(wire.Reset, uint64(n%256), 0)
	case 12:
		h.send(h.out.Bytes()[a : int(a)+n%32])
	case 13:
		h.post(h.write(h.peer.Addr+uint64(n), h.peer.RKey, int(a)))
	case 14:
		_ = h.ep.PostRecv(1)
	case 15:
		_ = h.ep.Disconnect()
	}
}
