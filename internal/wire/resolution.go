package wire

import "encoding/binary"

// The private data of the connection manager's SIDR messages (InfiniBand specification,
// 12.11), by which queue pairs for datagrams find each other.

// ResolutionRequest is the request of a sender to a receiver, or of a receiver, with Ended,
// to a sender.
type ResolutionRequest struct {
	Kind ResolutionKind
	ID   uint64 // chosen by the sender, at random
	Port uint16 // of the sender; Watches only
}

// ResolutionKind is what a request is for.
type ResolutionKind uint8

// The kinds, by their numbers on the wire.
const (
	Asks    ResolutionKind = iota // asks which queue pair the receiver has
	Watches                       // is answered when the receiver's queue pair ends
	Ended                         // by the receiver: its queue pair has ended
)

// ResolutionReply answers a request. The SIDR message itself has the queue pair's number.
type ResolutionReply struct {
	MaxMessage uint16 // bytes that a datagram may have behind its header
	Key        uint32 // Q_Key
}

// Sizes in bytes.
const (
	ResolutionRequestSize = 14
	ResolutionReplySize   = 8
)

// Append appends the encoded r to b.
func (r ResolutionRequest) Append(b []byte) []byte {
	b = append(b, datagramMagic, datagramVersion, byte(r.Kind), 0)
	b = binary.BigEndian.AppendUint64(b, r.ID)
	return binary.BigEndian.AppendUint16(b, r.Port)
}

// DecodeResolutionRequest decodes a request, behind which there may be other bytes. ok is
// false if b is no request of this version.
func DecodeResolutionRequest(b []byte) (r ResolutionRequest, ok bool) {
	if len(b) < ResolutionRequestSize || b[0] != datagramMagic || b[1] != datagramVersion {
		return r, false
	}
	r.Kind = ResolutionKind(b[2])
	r.ID = binary.BigEndian.Uint64(b[4:])
	r.Port = binary.BigEndian.Uint16(b[12:])
	return r, r.Kind <= Ended && (r.Kind == Watches) == (r.Port != 0)
}

// Append appends the encoded r to b.
func (r ResolutionReply) Append(b []byte) []byte {
	b = append(b, datagramMagic, datagramVersion)
	b = binary.BigEndian.AppendUint16(b, r.MaxMessage)
	return binary.BigEndian.AppendUint32(b, r.Key)
}

// DecodeResolutionReply decodes a reply, behind which there may be other bytes. ok is
// false if b is no reply of this version.
func DecodeResolutionReply(b []byte) (r ResolutionReply, ok bool) {
	if len(b) < ResolutionReplySize || b[0] != datagramMagic || b[1] != datagramVersion {
		return r, false
	}
	r.MaxMessage = binary.BigEndian.Uint16(b[2:])
	r.Key = binary.BigEndian.Uint32(b[4:])
	return r, r.Key != 0 && r.Key>>31 == 0
}
