package wire

import (
	"encoding/binary"
	"net/netip"
)

// DatagramHeader begins each datagram. It has what the receiver's queue pair does
// not report: the sender's port, and a number by which missing datagrams are noticed.
type DatagramHeader struct {
	// SourcePort is the sender's.
	SourcePort uint16

	// Sequence counts the datagrams from the sender to this address, from 0, modulo
	// 2^32. It begins again at 0 when the sender has resolved the address again.
	Sequence uint32
}

// DatagramHeaderSize is its size in bytes.
const DatagramHeaderSize = 8

const (
	datagramMagic   = 0x5d
	datagramVersion = 1
)

// Put encodes h into b.
func (h DatagramHeader) Put(b *[DatagramHeaderSize]byte) {
	b[0], b[1] = datagramMagic, datagramVersion
	binary.BigEndian.PutUint16(b[2:], h.SourcePort)
	binary.BigEndian.PutUint32(b[4:], h.Sequence)
}

// DecodeDatagramHeader decodes a header. ok is false if b is no header of this version.
func DecodeDatagramHeader(b [DatagramHeaderSize]byte) (h DatagramHeader, ok bool) {
	h.SourcePort = binary.BigEndian.Uint16(b[2:])
	h.Sequence = binary.BigEndian.Uint32(b[4:])
	return h, b[0] == datagramMagic && b[1] == datagramVersion && h.SourcePort != 0
}

// ProofHeader begins a message about where a sender's datagrams by UDP arrive, in the place of a
// DatagramHeader: see section 12.4 of docs/protocol.md.
type ProofHeader struct {
	Kind       ProofKind
	SourcePort uint16 // the sender's
}

// ProofKind is what such a message is.
type ProofKind uint8

// The kinds, by their numbers on the wire.
const (
	ProofQuestion  ProofKind = iota + 1 // do datagrams by UDP arrive at the receiver? A ProofRequest follows
	ProofConfirmed                      // the receiver has answered by UDP; a nonce and a token follow
)

// Sizes in bytes.
const (
	ProofNonceSize    = 16
	ProofRequestSize  = ProofNonceSize + 20
	ProofConfirmSize  = 2 * ProofNonceSize
	ProofAnswerSize   = 3 * ProofNonceSize // by UDP
	ProofAcceptedSize = 2 * ProofNonceSize // by UDP
)

const proofMagic = 0x5e

// Put encodes h into b.
func (h ProofHeader) Put(b *[DatagramHeaderSize]byte) {
	*b = [DatagramHeaderSize]byte{proofMagic, datagramVersion, 0, 0, byte(h.Kind)}
	binary.BigEndian.PutUint16(b[2:], h.SourcePort)
}

// DecodeProofHeader decodes a header. ok is false if b is no header of this kind and version.
func DecodeProofHeader(b [DatagramHeaderSize]byte) (h ProofHeader, ok bool) {
	h = ProofHeader{Kind: ProofKind(b[4]), SourcePort: binary.BigEndian.Uint16(b[2:])}
	return h, b[0] == proofMagic && b[1] == datagramVersion && h.SourcePort != 0
}

// ProofRequest is what a sender asks: whether its datagrams by UDP, from an address, arrive.
type ProofRequest struct {
	Nonce [ProofNonceSize]byte
	From  netip.AddrPort
}

// Append appends the encoded r to b.
func (r ProofRequest) Append(b []byte) []byte {
	b = append(b, r.Nonce[:]...)
	family := byte(6)
	if r.From.Addr().Is4() {
		family = 4
	}
	b = append(b, family, 0)
	b = binary.BigEndian.AppendUint16(b, r.From.Port())
	a := r.From.Addr().As16()
	return append(b, a[:]...)
}

// DecodeProofRequest decodes a request. ok is false if b is none.
func DecodeProofRequest(b []byte) (r ProofRequest, ok bool) {
	if len(b) != ProofRequestSize {
		return r, false
	}
	r.Nonce = [ProofNonceSize]byte(b)
	b = b[ProofNonceSize:]
	a := netip.AddrFrom16([16]byte(b[4:]))
	if b[0] == 4 {
		a = a.Unmap()
	}
	r.From = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))
	return r, (b[0] == 4 || b[0] == 6) && a.Is4() == (b[0] == 4) && !a.Is4In6() && r.From.Port() != 0
}
