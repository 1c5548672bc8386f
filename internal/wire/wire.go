// Package wire is the protocol's bytes: the private data of the handshake, the
// immediate of a data message, and the records of control messages. It encodes,
// decodes and validates, and knows nothing of links or streams. docs/protocol.md
// is its specification. Numbers are big-endian.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ringnet/ringnet/credit"
)

// Version of the protocol. Both sides must speak the same.
const Version = 3

const magic = 0x724e_4554 // "rNET"

// Sizes in bytes.
const (
	HelloSize  = 12 // a record follows
	HeaderSize = 16
	RecordSize = 24
)

// What a SEND may carry: a header and so many records at most.
const (
	MaxRecords  = 10
	MessageSize = HeaderSize + MaxRecords*RecordSize
)

// Limits of what a peer may announce. A ring larger than MaxRing would need lengths of
// more than 31 bits.
const (
	MinRing     = 4 << 10
	MaxRing     = 1 << 30
	MinReceives = credit.CreditsPerWindow
	MaxReceives = 1 << 16
	MaxStreams  = 1 << 16 // the numbers of streams are less
	MaxOpens    = 256     // streams whose OPEN has not been answered
)

// Features are bits of a Hello. A receiver ignores those that it does not know.
type Features uint16

const (
	// Dedicated says that the dialer wants the link for its first stream alone,
	// which begins with a ring of full size.
	Dedicated Features = 1 << 0

	// 1 << 1 is reserved: older dialers ask with it for a link without a stream, and take no other.

	// Proof says, in a request, that the dialer takes the link only if a TCP
	// connection from a port of its host has come to the listener, and, in an
	// answer, that the listener waits for that connection. Both name the port,
	// behind the record.
	Proof Features = 1 << 2

	// Resume says, in a request and its answer, that the side takes the link up again
	// when its queue pair is lost. The side's Reconnect stands behind the place of the
	// proof's port.
	Resume Features = 1 << 3
)

// Hello begins the private data of a connection request and of its answer. The
// record of the link's first stream follows it.
type Hello struct {
	Features Features
	Receives int // posted for data messages; a multiple of credit.CreditsPerWindow
}

var errNotRingnet = errors.New("the private data are not ringnet's")

// VersionError reports a peer that speaks another version of the protocol. Both sides read it.
type VersionError struct{ Peer uint16 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("version %d of the ringnet protocol was offered, and the side that refuses it speaks version %d", e.Peer, Version)
}

// Append appends the encoded hello to b.
func (h Hello) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, Version)
	b = binary.BigEndian.AppendUint16(b, uint16(h.Features))
	return binary.BigEndian.AppendUint32(b, uint32(h.Receives))
}

// DecodeHello decodes and validates private data, which may be padded: a hello
// and the record behind it.
func DecodeHello(b []byte) (Hello, Record, error) {
	if err := checkHeader(b); err != nil {
		return Hello{}, Record{}, err
	}
	if len(b) < HelloSize+RecordSize {
		return Hello{}, Record{}, fmt.Errorf("handshake of %d bytes, want %d", len(b), HelloSize+RecordSize)
	}
	features := binary.BigEndian.Uint16(b[6:])
	if features&resumptions != 0 {
		return Hello{}, Record{}, errResumption
	}
	receives := binary.BigEndian.Uint32(b[8:])
	if receives < MinReceives || receives > MaxReceives || receives%credit.CreditsPerWindow != 0 {
		return Hello{}, Record{}, fmt.Errorf("%d receives, want a multiple of %d from %d to %d", receives, credit.CreditsPerWindow, MinReceives, MaxReceives)
	}
	r, err := DecodeRecord(b[HelloSize:][:RecordSize])
	if err != nil {
		return Hello{}, Record{}, err
	}
	return Hello{Features: Features(features), Receives: int(receives)}, r, nil
}

// AppendProof appends the port that a hello with the feature Proof names to that hello
// and its record.
func AppendProof(b []byte, port uint16) []byte { return binary.BigEndian.AppendUint16(b, port) }

// ProofPort is the TCP port that private data names, or 0 if they ask for no proof, or
// are no hello at all.
func ProofPort(b []byte) uint16 {
	hello, _, err := DecodeHello(b)
	if err != nil || hello.Features&Proof == 0 || len(b) < HelloSize+RecordSize+2 {
		return 0
	}
	return binary.BigEndian.Uint16(b[HelloSize+RecordSize:])
}

// checkHeader returns an error unless b begins as messages of this version do.
func checkHeader(b []byte) error {
	if len(b) < 8 || binary.BigEndian.Uint32(b) != magic {
		return errNotRingnet
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != Version {
		return &VersionError{v}
	}
	return nil
}

// Reject is the private data of a rejection. Every version of the protocol rejects in
// this form, so that a peer of another version can say why.
type Reject struct {
	Busy   bool   // there is no room now: try again later
	Reason string // a sentence for people, or "" if the peer has sent none
}

// Full is how a listener rejects a request when its backlog is full.
var Full = Reject{Busy: true, Reason: "the listener's backlog is full"}

// codeBusy is the code of a rejection with Busy; 0 is that of others.
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

// DecodeReject decodes the private data of a rejection. It returns the zero Reject if
// they are not ringnet's. The reason is [Printable].
func DecodeReject(b []byte) Reject {
	if len(b) < 8 || binary.BigEndian.Uint32(b) != magic {
		return Reject{}
	}
	n := int(b[7])
	if n > rejectText || n > len(b)-8 {
		return Reject{}
	}
	return Reject{Busy: b[6] == codeBusy, Reason: Printable(b[8 : 8+n])}
}

// Printable makes a text of a peer's fit to be shown to people: each byte that is not
// printable ASCII becomes '?'.
func Printable(b []byte) string {
	text := make([]byte, len(b))
	for i, c := range b {
		if c < ' ' || c > '~' {
			c = '?'
		}
		text[i] = c
	}
	return string(text)
}
