package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
)

func document(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	return string(text)
}

// table is the rows of the document's table with the given header, their cells
// trimmed.
func table(t *testing.T, header string) (rows [][]string) {
	t.Helper()
	_, rest, ok := strings.Cut(document(t), "\n"+header+"\n")
	require.True(t, ok, "no table %q", header)
	rest, _, _ = strings.Cut(rest, "\n\n")
	for _, line := range strings.Split(rest, "\n")[1:] {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

func integer(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

func TestTheDocumentHasTheConstants(t *testing.T) {
	constants := map[string]int{}
	for _, row := range table(t, "| name | value | what it is |") {
		constants[row[0]] = integer(t, row[1])
	}
	require.Equal(t, map[string]int{
		"W":            credit.RecordWindow,
		"T":            credit.RecordCredit,
		"Q":            credit.CreditsPerWindow,
		"C":            credit.LinkControlReceives,
		"S":            credit.LinkControlSends,
		"hello":        HelloSize,
		"header":       HeaderSize,
		"record":       RecordSize,
		"records":      MaxRecords,
		"message":      MessageSize,
		"least ring":   MinRing,
		"largest ring": MaxRing,
		"least D":      MinReceives,
		"largest D":    MaxReceives,
		"streams":      MaxStreams,
		"opens":        MaxOpens,
	}, constants)
	names := map[int]string{}
	for _, row := range table(t, "| type | record | offset | size | field |") {
		if row[0] != "" {
			names[integer(t, row[0])] = row[1]
		}
	}
	for typ := credit.OpenRecord; typ <= credit.GoAwayRecord; typ++ {
		require.Equal(t, typ.String(), names[int(typ)], "the record of type %d in docs/protocol.md, 5.3", typ)
	}
	require.Len(t, table(t, "| reason | a stream is refused because | the active side should |"), int(refuseReasons-1))
	require.Contains(t, document(t), fmt.Sprintf("# The ringnet wire protocol, version %d\n", Version))
}

// TestTheDocumentSaysWhatIsSent compares the dumps in docs/protocol.md with
// what the encoder makes of the same messages.
func TestTheDocumentSaysWhatIsSent(t *testing.T) {
	message := func(h Header, records ...Record) []byte {
		b := make([]byte, HeaderSize)
		h.Put(b)
		for _, r := range records {
			b = append(b, encoded(r)...)
		}
		return b
	}
	immediate := func(flags DataFlags) []byte {
		return binary.BigEndian.AppendUint32(nil, DataImmediate(0, flags))
	}
	ringA := RingPlace{Addr: 0x7f3a_1000_0000, RKey: 0x1a2b, Size: 65536}
	ringB := RingPlace{Addr: 0x559e_2000_0000, RKey: 0x3c4d, Size: 4096}
	sent := map[string][]byte{
		"request": greeting{Hello{Receives: 64}, Record{Type: credit.OpenRecord, Ring: ringA}}.encoded(),
		"request of a proof": AppendProof(greeting{Hello{Features: Proof, Receives: 64},
			Record{Type: credit.OpenRecord, Ring: ringA}}.encoded(), 40000),
		"answer":                              greeting{Hello{Receives: 4}, Record{Type: credit.AcceptRecord, Ring: ringB}}.encoded(),
		"immediate of stream 0":               immediate(0),
		"link credit for one message":         message(Header{Data: 1}),
		"CREDIT for 1024 bytes":               message(Header{Data: 2}, Record{Type: credit.CreditRecord, Position: 1024}),
		"RING of 16384 bytes":                 message(Header{Data: 2}, Record{Type: credit.RingRecord, Ring: RingPlace{0x559e_3000_0000, 0x3c4e, 16384}}),
		"immediate of stream 0 in a new ring": immediate(NewRing),
		"FIN at 4101 and OPEN of stream 1": message(Header{Records: 2}, Record{Type: credit.FinRecord, Position: 4101},
			Record{Type: credit.OpenRecord, Stream: 1, Ring: RingPlace{0x7f3a_1001_0000, 0x1a2b, 16384}, Port: 40001}),
		"FINACK and REFUSE of stream 1": message(Header{Data: 3, Records: 1}, Record{Type: credit.FinAckRecord},
			Record{Type: credit.RefuseRecord, Stream: 1, Reason: RefusedBacklog}),
		"RESET at 3":                      message(Header{Data: 3, Records: 1}, Record{Type: credit.ResetRecord, Position: 3}),
		"GOAWAY":                          message(Header{Data: 3, Records: 3}, Record{Type: credit.GoAwayRecord}),
		"rejection of a request too many": Full.Append(nil),
		"rejection":                       Reject{Reason: (&VersionError{Peer: 4}).Error()}.Append(nil),
	}
	dumps := map[string][]byte{}
	for _, block := range strings.Split(document(t), "\n```hex ")[1:] {
		name, dump, _ := strings.Cut(block, "\n")
		dump, _, _ = strings.Cut(dump, "\n```")
		b, err := hex.DecodeString(strings.Join(strings.Fields(dump), ""))
		require.NoError(t, err, name)
		require.NotContains(t, dumps, name)
		dumps[name] = b
	}
	require.Equal(t, sent, dumps)
}
