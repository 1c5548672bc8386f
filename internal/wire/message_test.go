package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
)

func encoded(r Record) []byte {
	b := bytes.Repeat([]byte{0xff}, RecordSize)
	r.Put(b)
	return b
}

var place = RingPlace{Addr: 0x7f3a_1000_0000, RKey: 0x1a2b, Size: 64 << 10}

var goodRecords = []Record{
	{Type: credit.OpenRecord, Stream: 1, Ring: place, Port: 40001},
	{Type: credit.OpenRecord, Stream: MaxStreams - 1, Ring: RingPlace{math.MaxUint64, math.MaxUint32, MaxRing}, Port: math.MaxUint16},
	{Type: credit.AcceptRecord, Stream: 1, Ring: place},
	{Type: credit.AcceptRecord, Ring: RingPlace{Size: MinRing}},
	{Type: credit.RefuseRecord, Stream: 2, Reason: RefusedBacklog},
	{Type: credit.RefuseRecord, Stream: 2, Reason: RefusedClosed},
	{Type: credit.RefuseRecord, Stream: 2, Reason: RefusedTaken},
	{Type: credit.RefuseRecord, Stream: 2, Reason: RefusedMemory},
	{Type: credit.RefuseRecord, Stream: 2, Reason: RefusedReset},
	{Type: credit.CreditRecord, Stream: 3, Position: 1 << 40},
	{Type: credit.CreditRecord, Position: math.MaxUint64},
	{Type: credit.RingRecord, Stream: 4, Ring: place},
	{Type: credit.FinRecord, Stream: 5},
	{Type: credit.FinRecord, Stream: MaxStreams - 1, Position: math.MaxUint64},
	{Type: credit.ResetRecord, Stream: 6, Position: 12345},
	{Type: credit.ResetRecord, Stream: 6, Position: 12345, Late: true},
	{Type: credit.FinAckRecord, Stream: 7},
	{Type: credit.GoAwayRecord},
}

// meaning says which bytes of a record mean something, by its type.
var meaning = map[credit.Record]string{
	credit.OpenRecord:   "tsss rrrr aaaaaaaa nnnn pp..",
	credit.AcceptRecord: "tsss rrrr aaaaaaaa nnnn ....",
	credit.RefuseRecord: "tsss cccc ........ .... ....",
	credit.CreditRecord: "tsss .... bbbbbbbb .... ....",
	credit.RingRecord:   "tsss rrrr aaaaaaaa nnnn ....",
	credit.FinRecord:    "tsss .... bbbbbbbb .... ....",
	credit.ResetRecord:  "tsss l... bbbbbbbb .... ....",
	credit.FinAckRecord: "tsss .... ........ .... ....",
	credit.GoAwayRecord: "tsss .... ........ .... ....",
}

// requireWithinBounds requires that a record that was decoded is one that may be.
func requireWithinBounds(t *testing.T, r Record) {
	t.Helper()
	require.True(t, r.Type >= credit.OpenRecord && r.Type <= credit.GoAwayRecord, "%+v", r)
	require.Less(t, r.Stream, uint32(MaxStreams))
	switch r.Type {
	case credit.OpenRecord, credit.AcceptRecord, credit.RingRecord:
		require.True(t, r.Ring.Size >= MinRing && r.Ring.Size <= MaxRing && r.Ring.Size&(r.Ring.Size-1) == 0, "%+v", r)
	case credit.RefuseRecord:
		require.True(t, r.Reason >= RefusedBacklog && r.Reason < refuseReasons, "%+v", r)
	case credit.GoAwayRecord:
		require.Zero(t, r.Stream)
	}
}

// Every other bit must be zero, and every bit that means something does so, within its bounds.
func TestBitsWithoutAMeaningAreRefused(t *testing.T) {
	for _, r := range goodRecords {
		layout := strings.ReplaceAll(meaning[r.Type], " ", "")
		require.Len(t, layout, RecordSize)
		got, err := DecodeRecord(encoded(r))
		require.NoError(t, err)
		require.Equal(t, r, got)
		for at := range RecordSize {
			for bit := range 8 {
				b := encoded(r)
				b[at] ^= 1 << bit
				got, err := DecodeRecord(b)
				switch meant := layout[at]; {
				case meant == '.':
					require.EqualError(t, err, r.Type.String()+" with bits set that must be zero", "byte %d, bit %d", at, bit)
				case err != nil:
					require.NotEqual(t, byte('a'), meant, "any address will do")
					require.NotEqual(t, byte('b'), meant, "any position will do")
				default:
					require.NotEqual(t, r, got, "byte %d, bit %d", at, bit)
					requireWithinBounds(t, got)
				}
			}
		}
	}
}

// FuzzDecodeMessage: of what decodes, the header and every record encode to the
// same bytes, all of them.
func FuzzDecodeMessage(f *testing.F) {
	var all []byte
	for _, r := range goodRecords {
		all = append(all, encoded(r)...)
		f.Add(append(make([]byte, HeaderSize), encoded(r)...))
	}
	f.Add(append(make([]byte, HeaderSize), all[:MaxRecords*RecordSize]...))
	for _, size := range []uint32{MinRing / 2, 2 * MaxRing} {
		b := append(make([]byte, HeaderSize), encoded(Record{Type: credit.RingRecord})...)
		binary.BigEndian.PutUint32(b[HeaderSize+16:], size)
		f.Add(b)
	}
	f.Add(bytes.Repeat([]byte{0xff}, HeaderSize))
	f.Add(make([]byte, HeaderSize-1))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, records, err := DecodeHeader(b)
		if err != nil {
			require.Zero(t, h)
			require.Empty(t, records)
			return
		}
		again := make([]byte, HeaderSize)
		h.Put(again)
		require.Equal(t, b[:HeaderSize], again)
		require.LessOrEqual(t, len(records), MaxRecords*RecordSize)
		for ; len(records) > 0; records = records[RecordSize:] {
			r, err := DecodeRecord(records[:RecordSize])
			if err != nil {
				require.Zero(t, r)
				continue
			}
			requireWithinBounds(t, r)
			require.Equal(t, records[:RecordSize], encoded(r))
		}
	})
}

func FuzzDecodeDataImmediate(f *testing.F) {
	f.Add(uint32(0))
	f.Add(uint32(1<<31 | 7))
	f.Add(uint32(math.MaxUint32))
	f.Fuzz(func(t *testing.T, imm uint32) {
		stream, flags, err := DecodeDataImmediate(imm)
		if err != nil {
			require.Zero(t, stream)
			require.Zero(t, flags)
			return
		}
		require.Less(t, stream, uint32(MaxStreams))
		require.Equal(t, imm, DataImmediate(stream, flags))
	})
}
