package main

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// Each datagram of ringnet ping and ringnet perf begins with a header of 16 bytes, little
// endian: the server's token (8 bytes), the kind of datagram (4), and a number (4). A
// server answers only datagrams with its token, and each by a datagram of the same length
// and of a kind that servers do not answer. So nobody can make two servers answer each
// other, or make a server send more than it has received.

const datagramHeader = 16 // bytes

// Kinds of datagrams.
const (
	datagramEcho   = iota // the server sends it back as datagramEchoed
	datagramEchoed        // the server's answer
	datagramSink          // the server counts it
	datagramEnd           // the server reports its count since the last datagramEnd with another number
)

func putDatagramHeader(p []byte, token uint64, kind, number uint32) {
	binary.LittleEndian.PutUint64(p, token)
	binary.LittleEndian.PutUint32(p[8:], kind)
	binary.LittleEndian.PutUint32(p[12:], number)
}

func parseDatagramHeader(p []byte) (token uint64, kind, number uint32, ok bool) {
	if len(p) < datagramHeader {
		return 0, 0, 0, false
	}
	return binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint32(p[8:]), binary.LittleEndian.Uint32(p[12:]), true
}

// datagramBatch is how many datagrams are sent and received at once.
const datagramBatch = 64

// maxDatagram is the longest, in bytes: no frame of Ethernet has room for more.
const maxDatagram = 16 << 10

// answerWithin is after how long an answer to a datagram is taken for lost.
const answerWithin = time.Second

// datagramServer serves clients that know its token.
type datagramServer struct {
	conn  endpoint.PacketConn
	token uint64
	end   func(number uint32, received int) error // called with each datagramEnd of another number; nil: those are ignored

	received int
	ended    uint32 // the number of the last datagramEnd
}

// serve serves until the socket is closed.
func (s *datagramServer) serve() error {
	in, out := make([]ringnet.Message, datagramBatch), make([]ringnet.Message, 0, datagramBatch)
	for i := range in {
		in[i].Buffers = [][]byte{make([]byte, maxDatagram)}
		out = append(out, ringnet.Message{Buffers: [][]byte{nil}})
	}
	for {
		n, err := s.conn.ReadBatch(in, 0)
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		answers := 0
		for _, m := range in[:n] {
			p := m.Buffers[0][:m.N]
			switch token, kind, number, ok := parseDatagramHeader(p); {
			case !ok || token != s.token:
			case kind == datagramEcho:
				putDatagramHeader(p, token, datagramEchoed, number)
				out[answers].Buffers[0], out[answers].Addr = p, m.Addr
				answers++
			case kind == datagramSink:
				s.received++
			case kind == datagramEnd && s.end != nil && number != s.ended:
				if err := s.end(number, s.received); err != nil {
					return err
				}
				s.ended, s.received = number, 0
			}
		}
		writeBatch(s.conn, out[:answers])
	}
}

// writeBatch sends datagrams. Those that cannot be sent are lost, as datagrams may be.
func writeBatch(c endpoint.PacketConn, ms []ringnet.Message) {
	for len(ms) > 0 {
		n, err := c.WriteBatch(ms, 0)
		if err != nil {
			n = max(n, 0) + 1 // the error is that of the datagram behind these: leave it out
		}
		ms = ms[min(n, len(ms)):]
	}
}

// awaitAnswer reads until the answer to the datagram with the number comes.
func awaitAnswer(conn net.Conn, p []byte, number uint32) error {
	for {
		n, err := conn.Read(p)
		if err != nil {
			return err
		}
		if _, kind, of, ok := parseDatagramHeader(p[:n]); ok && kind == datagramEchoed && of == number {
			return nil
		}
	}
}

// portOf is the port of an address, which has one.
func portOf(a net.Addr) uint16 {
	return a.(interface{ AddrPort() netip.AddrPort }).AddrPort().Port()
}
