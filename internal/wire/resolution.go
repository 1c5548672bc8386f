package wire

import "encoding/binary"

// What the private data of the connection manager's SIDR messages is between queue
// pairs for datagrams (InfiniBand specification, 12.11).

// ResolutionRequest is one of those that a sender and a receiver make of each other.
type ResolutionRequest struct {
	Kind ResolutionKind
	ID   uint64 // chosen by the sender, at random
	Port uint16 // of the sender; Watches only
}

// ResolutionKind is what a request is for.
type ResolutionKind uint8

const (
	Asks    ResolutionKind = iota // which queue pair there is
	Watches                       // is answered when that queue pair ends
	Ended                         // by the receiver: it has
)

// ResolutionReply answers a request. The queue pair's number is in the message itself.
type ResolutionReply struct {
	MaxMessage uint16 // bytes that a datagram may have behind its header
	Key        uint32 // Q_Key
}

// Sizes in bytes.
const (
	ResolutionRequestSize = 14
	ResolutionReplySize   = 8
)

// Append encodes r.
func (r ResolutionRequest) Append(b []byte) []byte {
	b = append(b, datagramMagic, datagramVersion, byte(r.Kind), 0)
	b = binary.BigEndian.AppendUint64(b, r.ID)
	return binary.BigEndian.AppendUint16(b, r.Port)
}

// DecodeResolutionRequest returns false for what is no request of this version. There
// may be more behind it.
func DecodeResolutionRequest(b []byte) (r ResolutionRequest, ok bool) {
	if len(b) < ResolutionRequestSize || b[0] != datagramMagic || b[1] != datagramVersion {
		return r, false
	}
	r.Kind = ResolutionKind(b[2])
	r.ID = binary.BigEndian.Uint64(b[4:])
	r.Port = binary.BigEndian.Uint16(b[12:])
	return r, r.Kind <= Ended && (r.Kind == Watches) == (r.Port != 0)
}

// Append encodes r.
func (r ResolutionReply) Append(b []byte) []byte {
	b = append(b, datagramMagic, datagramVersion)
	b = binary.BigEndian.AppendUint16(b, r.MaxMessage)
	return binary.BigEndian.AppendUint32(b, r.Key)
}

// DecodeResolutionReply returns false for what is no reply of this version. There may be
// more behind it.
func DecodeResolutionReply(b []byte) (r ResolutionReply, ok bool) {
	if len(b) < ResolutionReplySize || b[0] != datagramMagic || b[1] != datagramVersion {
		return r, false
	}
	r.MaxMessage = binary.BigEndian.Uint16(b[2:])
	r.Key = binary.BigEndian.Uint32(b[4:])
	return r, r.Key != 0 && r.Key>>31 == 0
}
