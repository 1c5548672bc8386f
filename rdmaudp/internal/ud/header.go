package ud

import "encoding/binary"

// Header begins each datagram. It has what the receiver's queue pair does
// not report: the sender's port, and a number by which missing datagrams are noticed.
type Header struct {
	// SourcePort is the sender's.
	SourcePort uint16

	// Sequence counts the datagrams from the sender to this address, from 0, modulo
	// 2^32. It begins again at 0 when the sender has resolved the address again.
	Sequence uint32
}

// HeaderSize is its size in bytes.
const HeaderSize = 8

const (
	datagramMagic   = 0x5d
	datagramVersion = 1
)

// Put encodes h into b.
func (h Header) Put(b *[HeaderSize]byte) {
	b[0], b[1] = datagramMagic, datagramVersion
	binary.BigEndian.PutUint16(b[2:], h.SourcePort)
	binary.BigEndian.PutUint32(b[4:], h.Sequence)
}

// DecodeHeader decodes a header. ok is false if b is no header of this version.
func DecodeHeader(b [HeaderSize]byte) (h Header, ok bool) {
	h.SourcePort = binary.BigEndian.Uint16(b[2:])
	h.Sequence = binary.BigEndian.Uint32(b[4:])
	return h, b[0] == datagramMagic && b[1] == datagramVersion && h.SourcePort != 0
}
