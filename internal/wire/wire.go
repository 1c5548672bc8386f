// Package wire is the protocol's bytes: the private data of the handshake, the
// immediate of a data message, and the control messages. It encodes, decodes
// and validates, and knows nothing of connections. docs/protocol.md is its
// specification. Numbers are big-endian.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version of the protocol. Both sides must speak the same.
const Version = 1

const magic = 0x724e_4554 // "rNET"

// Sizes in bytes.
const (
	HelloSize   = 32
	ControlSize = 24
)

// Bounds of what a Hello may announce. A larger ring than MaxRing would need
// lengths beyond 31 bits.
const (
	MinRing     = 4 << 10
	MaxRing     = 1 << 30
	MinReceives = 4
	MaxReceives = 1 << 16
)

// Hello is the private data of a connection request and of its answer: where
// the sender of the Hello wants its data.
type Hello struct {
	Features uint16 // none are defined: 0
	Addr     uint64 // of the ring
	RKey     uint32 // of the ring
	Ring     int    // bytes; a power of two
	Receives int    // posted for data messages; divisible by 4
}

var errNotRingnet = errors.New("the peer does not speak ringnet")

// VersionError reports a peer that speaks another version of the protocol.
type VersionError struct{ Peer uint16 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the peer speaks version %d of the ringnet protocol, this side version %d", e.Peer, Version)
}

// Append appends the encoded Hello to b.
func (h Hello) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, Version)
	b = binary.BigEndian.AppendUint16(b, h.Features)
	b = binary.BigEndian.AppendUint64(b, h.Addr)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	b = binary.BigEndian.AppendUint32(b, uint32(h.Ring))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Receives))
	return append(b, 0, 0, 0, 0)
}

// DecodeHello decodes and validates private data, which may be padded.
func DecodeHello(b []byte) (Hello, error) {
	if err := header(b); err != nil {
		return Hello{}, err
	}
	if len(b) < HelloSize {
		return Hello{}, fmt.Errorf("handshake of %d bytes, want %d", len(b), HelloSize)
	}
	ring, receives := binary.BigEndian.Uint32(b[20:]), binary.BigEndian.Uint32(b[24:])
	switch {
	case ring < MinRing || ring > MaxRing || ring&(ring-1) != 0:
		return Hello{}, fmt.Errorf("ring of %d bytes, want a power of two from %d to %d", ring, MinRing, MaxRing)
	case receives < MinReceives || receives > MaxReceives || receives%4 != 0:
		return Hello{}, fmt.Errorf("%d receives, want a multiple of 4 from %d to %d", receives, MinReceives, MaxReceives)
	}
	return Hello{
		Features: binary.BigEndian.Uint16(b[6:]),
		Addr:     binary.BigEndian.Uint64(b[8:]),
		RKey:     binary.BigEndian.Uint32(b[16:]),
		Ring:     int(ring),
		Receives: int(receives),
	}, nil
}

func header(b []byte) error {
	if len(b) < 8 || binary.BigEndian.Uint32(b) != magic {
		return errNotRingnet
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != Version {
		return &VersionError{v}
	}
	return nil
}

// Reject is the private data of a rejection. Every version of the protocol
// rejects in this form, so a peer of another one can still say that it is.
type Reject struct {
	Busy   bool   // there is no room now: ask again in a while
	Reason string // a sentence for people, or "" if there is none to be had
}

// Full is how a listener rejects what its backlog has no room for.
var Full = Reject{Busy: true, Reason: "the listener's backlog is full"}

// codeBusy is the code of a rejection that does not last; 0 is that of others.
const codeBusy = 1

// rejectText is how many bytes of explanation fit behind the header, the code
// and the length in the 148 that the connection manager carries.
const rejectText = 148 - 8

// Append appends the encoded rejection to b. A long reason is cut.
func (r Reject) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, Version)
	var code byte
	if r.Busy {
		code = codeBusy
	}
	n := min(len(r.Reason), rejectText)
	b = append(b, code, byte(n))
	return append(b, r.Reason[:n]...)
}

// DecodeReject decodes what came with a rejection: the zero Reject if that is
// nothing of ours. What is not printable ASCII in the reason comes out as '?',
// for it will be shown to people.
func DecodeReject(b []byte) Reject {
	if len(b) < 8 || binary.BigEndian.Uint32(b) != magic {
		return Reject{}
	}
	n := int(b[7])
	if n > rejectText || n > len(b)-8 {
		return Reject{}
	}
	text := make([]byte, n)
	for i, c := range b[8 : 8+n] {
		if c < ' ' || c > '~' {
			c = '?'
		}
		text[i] = c
	}
	return Reject{Busy: b[6] == codeBusy, Reason: string(text)}
}

// Immediate is the immediate of a data message of n bytes.
func Immediate(n int) uint32 { return uint32(n) }

// DecodeImmediate returns the length of the data message that came with the
// immediate and with n bytes as the device counted them.
func DecodeImmediate(imm uint32, n int) (int, error) {
	if uint64(imm) != uint64(n) || imm == 0 || imm > MaxRing {
		return 0, fmt.Errorf("data message of %d bytes with immediate %d", n, imm)
	}
	return n, nil
}

// Type is the type of a control message.
type Type uint8

const (
	Credit Type = 1 // room in the ring and receives posted, as totals
	Fin    Type = 2 // the stream ends
	FinAck Type = 3 // the peer's Fin has been processed
	Reset  Type = 4 // the sender has closed with bytes unread
)

func (t Type) String() string {
	switch t {
	case Credit:
		return "CREDIT"
	case Fin:
		return "FIN"
	case FinAck:
		return "FINACK"
	case Reset:
		return "RESET"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Control is a control message.
type Control struct {
	Type     Type
	Bytes    uint64 // Credit: bytes consumed. Fin, Reset: bytes in the stream
	Messages uint64 // Credit: data messages whose receives are posted again
}

// Put encodes c into the first ControlSize bytes of b.
func (c Control) Put(b []byte) {
	binary.BigEndian.PutUint64(b, uint64(c.Type)<<56)
	binary.BigEndian.PutUint64(b[8:], c.Bytes)
	binary.BigEndian.PutUint64(b[16:], c.Messages)
}

// DecodeControl decodes a control message.
func DecodeControl(b []byte) (Control, error) {
	if len(b) != ControlSize {
		return Control{}, fmt.Errorf("control message of %d bytes, want %d", len(b), ControlSize)
	}
	c := Control{
		Bytes:    binary.BigEndian.Uint64(b[8:]),
		Messages: binary.BigEndian.Uint64(b[16:]),
	}
	word := binary.BigEndian.Uint64(b)
	c.Type = Type(word >> 56)
	switch {
	case c.Type < Credit || c.Type > Reset:
		return Control{}, fmt.Errorf("control message of unknown type %d", uint8(c.Type))
	case word<<8 != 0 || c.Type != Credit && c.Messages != 0 || c.Type == FinAck && c.Bytes != 0:
		return Control{}, fmt.Errorf("%v with bits set that must be zero", c.Type)
	}
	return c, nil
}
