//go:build linux

package shm

// The handshake's messages: one packet each.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// kind of a frame. The names are those of the connection manager's messages
// (InfiniBand specification, chapter 12).
type kind uint8

const (
	req kind = 1 // a dialer asks
	rep kind = 2 // the listener answers, and shares the memory of both
	rtu kind = 3 // the dialer confirms
	rej kind = 4 // either refuses
)

// frame is one message of the handshake.
type frame struct {
	kind    kind
	reason  int            // rej
	shape   shape          // req, rep: of the sender's segment
	source  netip.AddrPort // req: the dialer's address
	target  netip.AddrPort // req: the address that it dials
	private []byte
	text    string // rej: why, when it is the fabric that refuses
}

const (
	frameMagic   = 0x6d68_7372 // "rshm"
	frameVersion = 2

	headerSize = 28
	maxText    = 128
	// maxFrame is more bytes than any frame has, so that a longer packet is noticed.
	maxFrame = headerSize + 4*256
)

var errNotOurs = errors.New("the peer does not speak ringnet's shared memory protocol")

// maxPrivate is how many bytes of private data each kind may have.
var maxPrivate = [...]int{req: fabric.MaxConnectData, rep: fabric.MaxAcceptData, rtu: 0, rej: fabric.MaxRejectData}

// encode returns f as a packet. The ends of a connection run on one machine,
// but not always as programs of one kind, so the numbers are little-endian.
func (f *frame) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, maxFrame), frameMagic)
	b = append(b, frameVersion, byte(f.kind))
	b = binary.LittleEndian.AppendUint16(b, uint16(f.reason))
	b = binary.LittleEndian.AppendUint64(b, uint64(f.shape.region))
	b = binary.LittleEndian.AppendUint32(b, f.shape.rkey)
	b = binary.LittleEndian.AppendUint32(b, uint32(f.shape.recvQueue))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.shape.recvSize))
	source, target := "", ""
	if f.kind == req {
		source, target = f.source.String(), f.target.String()
	}
	for _, s := range []string{source, target, string(f.private), f.text[:min(len(f.text), maxText)]} {
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

// decodeFrame decodes and validates a packet.
func decodeFrame(b []byte) (frame, error) {
	if len(b) < headerSize || binary.LittleEndian.Uint32(b) != frameMagic {
		return frame{}, errNotOurs
	}
	if b[4] != frameVersion {
		return frame{}, fmt.Errorf("the peer speaks version %d of ringnet's shared memory protocol, this side version %d", b[4], frameVersion)
	}
	f := frame{kind: kind(b[5]), reason: int(binary.LittleEndian.Uint16(b[6:]))}
	if f.kind < req || f.kind > rej {
		return frame{}, fmt.Errorf("handshake message of unknown kind %d", f.kind)
	}
	if f.kind == req || f.kind == rep {
		var err error
		f.shape, err = newShape(
			binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:]),
			binary.LittleEndian.Uint32(b[20:]), binary.LittleEndian.Uint32(b[24:]))
		if err != nil {
			return frame{}, err
		}
	}
	var fields [4][]byte
	rest := b[headerSize:]
	for i := range fields {
		if len(rest) < 1 || len(rest) < 1+int(rest[0]) {
			return frame{}, errors.New("handshake message that ends early")
		}
		fields[i], rest = rest[1:1+int(rest[0])], rest[1+int(rest[0]):]
	}
	if len(rest) > 0 || len(fields[2]) > maxPrivate[f.kind] || len(fields[3]) > maxText {
		return frame{}, errors.New("handshake message that is too long")
	}
	f.private, f.text = fields[2], wire.Printable(fields[3])
	if f.kind == req {
		var errs [2]error
		f.source, errs[0] = netip.ParseAddrPort(string(fields[0]))
		f.target, errs[1] = netip.ParseAddrPort(string(fields[1]))
		if errs != [2]error{} {
			return frame{}, errors.New("handshake message with a bad address")
		}
	}
	return f, nil
}
