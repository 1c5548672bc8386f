package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/ringnet/ringnet/credit"
)

// DataFlags are bits of the immediate of a data message. The others are the
// number of its stream.
type DataFlags uint32

// The bits that mean something.
const (
	NewRing  DataFlags = 1 << 31 // the first message in the ring that RING has offered
	FullRing DataFlags = 1 << 30 // with it the sender has used all the room that it knows to be free

	dataFlags = NewRing | FullRing
)

// DataImmediate is the immediate of a data message.
func DataImmediate(stream uint32, flags DataFlags) uint32 { return stream | uint32(flags) }

// DecodeDataImmediate returns what DataImmediate was given.
func DecodeDataImmediate(imm uint32) (stream uint32, flags DataFlags, err error) {
	stream = imm &^ uint32(dataFlags)
	if stream >= MaxStreams {
		return 0, 0, fmt.Errorf("data for stream %d, want less than %d", stream, MaxStreams)
	}
	return stream, DataFlags(imm) & dataFlags, nil
}

// Header begins every SEND. It counts the messages of the peer's that this side has
// polled, and posted their receives again, since the link began.
type Header struct {
	Data    uint64 // data messages
	Records uint64 // SENDs with records
}

// Put encodes h into the first HeaderSize bytes of b.
func (h Header) Put(b []byte) {
	binary.BigEndian.PutUint64(b, h.Data)
	binary.BigEndian.PutUint64(b[8:], h.Records)
}

// DecodeHeader decodes the header of a SEND and returns the records behind it, RecordSize
// bytes each. A link credit has none.
func DecodeHeader(b []byte) (h Header, records []byte, err error) {
	if n := len(b) - HeaderSize; n < 0 || n%RecordSize != 0 || n > MaxRecords*RecordSize {
		return Header{}, nil, fmt.Errorf("control message of %d bytes, want %d and %d for each of 0 to %d records",
			len(b), HeaderSize, RecordSize, MaxRecords)
	}
	return Header{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, b[HeaderSize:], nil
}

// RefuseReason is why a stream is refused.
type RefuseReason uint32

// The reasons, by their numbers on the wire.
const (
	RefusedBacklog RefuseReason = 1 + iota // the listener's backlog is full: try again
	RefusedClosed                          // the listener is closed
	RefusedTaken                           // another stream has this port: use another port
	RefusedMemory                          // there is no memory for a ring: try again
	RefusedReset                           // the side that accepted the stream has reset it
	refuseReasons
)

// Record is what one side tells the other about a stream, or, with GOAWAY, about all.
type Record struct {
	Type     credit.Record
	Stream   uint32       // its number, less than MaxStreams
	Position uint64       // CREDIT, FIN, RESET: bytes
	Ring     RingPlace    // OPEN, ACCEPT, RING
	Port     uint16       // OPEN: the dialer's, of this stream
	Reason   RefuseReason // REFUSE
	Late     bool         // RESET: bytes arrived after the application had read all there was, and closed
}

// RingPlace is where a ring is.
type RingPlace struct {
	Addr uint64
	RKey uint32
	Size int // bytes; a power of two
}

// Put encodes r into the first RecordSize bytes of b.
func (r Record) Put(b []byte) {
	clear(b[:RecordSize])
	binary.BigEndian.PutUint32(b, uint32(r.Type)<<24|r.Stream)
	switch r.Type {
	case credit.CreditRecord, credit.FinRecord, credit.ResetRecord:
		binary.BigEndian.PutUint64(b[8:], r.Position)
		if r.Late {
			b[4] = 1
		}
	case credit.RefuseRecord:
		binary.BigEndian.PutUint32(b[4:], uint32(r.Reason))
	case credit.OpenRecord, credit.AcceptRecord, credit.RingRecord:
		binary.BigEndian.PutUint32(b[4:], r.Ring.RKey)
		binary.BigEndian.PutUint64(b[8:], r.Ring.Addr)
		binary.BigEndian.PutUint32(b[16:], uint32(r.Ring.Size))
		binary.BigEndian.PutUint16(b[20:], r.Port)
	}
}

// DecodeRecord decodes and validates a record, the RecordSize bytes of b.
func DecodeRecord(b []byte) (Record, error) {
	word := binary.BigEndian.Uint32(b)
	r := Record{Type: credit.Record(word >> 24), Stream: word & (1<<24 - 1)}
	if r.Type == credit.NoRecord || r.Type > credit.GoAwayRecord {
		return Record{}, fmt.Errorf("record of type %d, want 1 to %d", uint8(r.Type), uint8(credit.GoAwayRecord))
	}
	if r.Stream >= MaxStreams {
		return Record{}, fmt.Errorf("%v for stream %d, want less than %d", r.Type, r.Stream, MaxStreams)
	}
	switch r.Type {
	case credit.CreditRecord, credit.FinRecord, credit.ResetRecord:
		r.Position = binary.BigEndian.Uint64(b[8:])
		r.Late = r.Type == credit.ResetRecord && b[4] == 1
	case credit.RefuseRecord:
		r.Reason = RefuseReason(binary.BigEndian.Uint32(b[4:]))
		if r.Reason == 0 || r.Reason >= refuseReasons {
			return Record{}, fmt.Errorf("REFUSE for reason %d, want 1 to %d", uint32(r.Reason), uint32(refuseReasons-1))
		}
	case credit.OpenRecord, credit.AcceptRecord, credit.RingRecord:
		size := binary.BigEndian.Uint32(b[16:])
		if size < MinRing || size > MaxRing || size&(size-1) != 0 {
			return Record{}, fmt.Errorf("%v with a ring of %d bytes, want a power of two from %d to %d", r.Type, size, MinRing, MaxRing)
		}
		r.Ring = RingPlace{Addr: binary.BigEndian.Uint64(b[8:]), RKey: binary.BigEndian.Uint32(b[4:]), Size: int(size)}
		if r.Type == credit.OpenRecord {
			r.Port = binary.BigEndian.Uint16(b[20:])
		}
	}
	// Fields that a record of this type does not have must be zero.
	var again [RecordSize]byte
	if r.Put(again[:]); [RecordSize]byte(b) != again || r.Type == credit.GoAwayRecord && r.Stream != 0 {
		return Record{}, fmt.Errorf("%v with bits set that must be zero", r.Type)
	}
	return r, nil
}
