package ud

import "encoding/binary"

// The private data of the connection manager's SIDR messages (InfiniBand specification,
// 12.11), by which queue pairs for datagrams find each other.

// request is the request of a sender to a receiver, or of a receiver, of endedKind,
// to a sender.
type request struct {
	Kind requestKind
	ID   uint64 // chosen by the sender, at random
	Port uint16 // of the sender; watchKind only
}

// requestKind is what a request is for.
type requestKind uint8

// The kinds, by their numbers on the wire.
const (
	askKind   requestKind = iota // asks which queue pair the receiver has
	watchKind                    // is answered when the receiver's queue pair ends
	endedKind                    // by the receiver: its queue pair has ended
)

// reply answers a request. The SIDR message itself has the queue pair's number.
type reply struct {
	MaxMessage uint16 // bytes that a datagram may have behind its header
	Key        uint32 // Q_Key
}

// Sizes in bytes.
const (
	requestSize = 14
	replySize   = 8
)

// append appends the encoded r to b.
func (r request) append(b []byte) []byte {
	b = append(b, datagramMagic, datagramVersion, byte(r.Kind), 0)
	b = binary.BigEndian.AppendUint64(b, r.ID)
	return binary.BigEndian.AppendUint16(b, r.Port)
}

// decodeRequest decodes a request, behind which there may be other bytes. ok is
// false if b is no request of this version.
func decodeRequest(b []byte) (r request, ok bool) {
	if len(b) < requestSize || b[0] != datagramMagic || b[1] != datagramVersion {
		return r, false
	}
	r.Kind = requestKind(b[2])
	r.ID = binary.BigEndian.Uint64(b[4:])
	r.Port = binary.BigEndian.Uint16(b[12:])
	return r, r.Kind <= endedKind && (r.Kind == watchKind) == (r.Port != 0)
}

// append appends the encoded r to b.
func (r reply) append(b []byte) []byte {
	b = append(b, datagramMagic, datagramVersion)
	b = binary.BigEndian.AppendUint16(b, r.MaxMessage)
	return binary.BigEndian.AppendUint32(b, r.Key)
}

// decodeReply decodes a reply, behind which there may be other bytes. ok is
// false if b is no reply of this version.
func decodeReply(b []byte) (r reply, ok bool) {
	if len(b) < replySize || b[0] != datagramMagic || b[1] != datagramVersion {
		return r, false
	}
	r.MaxMessage = binary.BigEndian.Uint16(b[2:])
	r.Key = binary.BigEndian.Uint32(b[4:])
	return r, r.Key != 0 && r.Key>>31 == 0
}
