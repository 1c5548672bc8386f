package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
)

func encoded(r Record) []byte {
	b := make([]byte, RecordSize)
	r.Put(b)
	return b
}

func TestBadHeaderIsRefusedWithTheReason(t *testing.T) {
	for n := range 2 * MessageSize {
		if n >= HeaderSize && (n-HeaderSize)%RecordSize == 0 && n <= MessageSize {
			continue
		}
		h, records, err := DecodeHeader(make([]byte, n))
		require.EqualError(t, err, fmt.Sprintf("control message of %d bytes, want 16 and 24 for each of 0 to 10 records", n))
		require.Zero(t, h)
		require.Nil(t, records)
	}
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

func TestRecordComesBack(t *testing.T) {
	for _, r := range goodRecords {
		b := bytes.Repeat([]byte{0xff}, RecordSize+1)
		r.Put(b)
		require.Equal(t, byte(0xff), b[RecordSize], "not beyond its size")
		got, err := DecodeRecord(b[:RecordSize])
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	require.Panics(t, func() { goodRecords[0].Put(make([]byte, RecordSize-1)) })
}

// anyType is what records may be of.
var anyType = fmt.Sprintf(", want 1 to %d", credit.GoAwayRecord)

func TestBadRecordIsRefusedWithTheReason(t *testing.T) {
	const size = ", want a power of two from 4096 to 1073741824"
	type bad struct {
		data []byte
		want string
	}
	cases := []bad{
		{make([]byte, RecordSize), "record of type 0" + anyType},
		{encoded(Record{Type: credit.GoAwayRecord + 1}), fmt.Sprintf("record of type %d", credit.GoAwayRecord+1) + anyType},
		{encoded(Record{Type: 255, Stream: 1}), "record of type 255" + anyType},
		{encoded(Record{Type: credit.FinRecord, Stream: MaxStreams}), "FIN for stream 65536, want less than 65536"},
		{encoded(Record{Type: credit.FinAckRecord, Stream: 1<<24 - 1}), "FINACK for stream 16777215, want less than 65536"},
		{encoded(Record{Type: credit.RefuseRecord}), "REFUSE for reason 0, want 1 to 5"},
		{encoded(Record{Type: credit.RefuseRecord, Reason: refuseReasons}), "REFUSE for reason 6, want 1 to 5"},
		{encoded(Record{Type: credit.RefuseRecord, Reason: math.MaxUint32}), "REFUSE for reason 4294967295, want 1 to 5"},
		{encoded(Record{Type: credit.GoAwayRecord, Stream: 1}), "GOAWAY with bits set that must be zero"},
	}
	for _, typ := range []credit.Record{credit.OpenRecord, credit.AcceptRecord, credit.RingRecord} {
		for _, n := range []uint32{0, MinRing / 2, MinRing + 1, 2 * MaxRing, math.MaxUint32} {
			b := encoded(Record{Type: typ, Ring: place})
			binary.BigEndian.PutUint32(b[16:], n)
			cases = append(cases, bad{b, fmt.Sprintf("%v with a ring of %d bytes%s", typ, n, size)})
		}
	}
	for _, c := range cases {
		got, err := DecodeRecord(c.data)
		require.EqualError(t, err, c.want)
		require.Zero(t, got)
	}
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

// Every other bit must be zero, and every bit that means something does so.
func TestBitsWithoutAMeaningAreRefused(t *testing.T) {
	for _, r := range goodRecords {
		layout := strings.ReplaceAll(meaning[r.Type], " ", "")
		require.Len(t, layout, RecordSize)
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
	f.Add(bytes.Repeat([]byte{0xff}, HeaderSize))
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
			require.Less(t, r.Stream, uint32(MaxStreams))
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
