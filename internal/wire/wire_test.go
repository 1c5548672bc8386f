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

// greeting is a hello and the record that follows it.
type greeting struct {
	hello  Hello
	record Record
}

func (g greeting) encoded() []byte { return append(g.hello.Append(nil), encoded(g.record)...) }

var greetings = []greeting{
	{Hello{Receives: 64}, Record{Type: credit.OpenRecord, Ring: RingPlace{Addr: 0x7f3a_1000_0000, RKey: 0x1a2b, Size: 64 << 10}}},
	{
		Hello{Features: math.MaxUint16 &^ resumptions, Receives: MaxReceives},
		Record{Type: credit.OpenRecord, Stream: MaxStreams - 1, Ring: RingPlace{Addr: math.MaxUint64, RKey: math.MaxUint32, Size: MaxRing}, Port: math.MaxUint16},
	},
	{Hello{Receives: MinReceives}, Record{Type: credit.AcceptRecord, Ring: RingPlace{Size: MinRing}}},
	{Hello{Receives: 8}, Record{Type: credit.RefuseRecord, Reason: RefusedMemory}},
}

func TestRejectRepeatsTheReason(t *testing.T) {
	long := strings.Repeat("no! ", 50)
	for _, c := range []struct{ reason, want string }{
		{"", ""},
		{"the backlog is full", "the backlog is full"},
		{long, long[:140]},
		{"line\nbreak, \x1b[31mcolour, \x00, \x7f, é", "line?break, ?[31mcolour, ?, ?, ??"},
	} {
		b := Reject{Reason: c.reason}.Append(nil)
		require.LessOrEqual(t, len(b), 148, "what the connection manager carries")
		b[4], b[5] = 0x12, 0x34 // of another version, which also says why
		for code := range 3 {
			b[6] = byte(code)
			require.Equal(t, Reject{Busy: code == 1, Reason: c.want}, DecodeReject(append(b, make([]byte, 148-len(b))...)), "padded")
		}
	}
	require.Equal(t, Full, DecodeReject(Full.Append(nil)))
}

// FuzzDecodeHello: what decodes is within its bounds and encodes to the same
// bytes, but for the padding, which is ignored.
func FuzzDecodeHello(f *testing.F) {
	for _, g := range greetings {
		hello, record, err := DecodeHello(g.encoded())
		require.NoError(f, err)
		require.Equal(f, g, greeting{hello, record})
		f.Add(g.encoded())
		f.Add(g.encoded()[:HelloSize+RecordSize-1])
		f.Add(append(AppendProof(g.encoded(), 40000), make([]byte, 18)...))
	}
	for _, receives := range []uint32{0, 66, MaxReceives + 4, math.MaxUint32 - 3} {
		f.Add(greeting{Hello{Receives: int(receives)}, greetings[0].record}.encoded())
	}
	f.Add([]byte("rNET\x00\x03\x00\x00"))
	f.Add([]byte("rNET"))
	f.Fuzz(func(t *testing.T, b []byte) {
		hello, record, err := DecodeHello(b)
		if err != nil {
			require.Zero(t, greeting{hello, record})
			require.Zero(t, ProofPort(b))
			return
		}
		requireWithinBounds(t, record)
		require.True(t, hello.Receives >= MinReceives && hello.Receives <= MaxReceives && hello.Receives%4 == 0)
		require.Equal(t, b[:HelloSize+RecordSize], greeting{hello, record}.encoded())
		if behind := b[HelloSize+RecordSize:]; hello.Features&Proof == 0 || len(behind) < 2 {
			require.Zero(t, ProofPort(b))
		} else {
			require.Equal(t, binary.BigEndian.Uint16(behind), ProofPort(b))
		}
	})
}

// FuzzDecodeReject: whatever comes, what people are shown is short, printable
// and the peer's.
func FuzzDecodeReject(f *testing.F) {
	f.Add(Reject{Reason: "because"}.Append(nil))
	f.Add(Reject{Reason: "\x1b]0;title\a"}.Append(nil))
	f.Add(append(Reject{Reason: strings.Repeat("long ", 40)}.Append(nil), 0, 0))
	f.Add(Full.Append(nil))
	f.Add([]byte("rNET\x00\x01\xff\xffx"))
	f.Add([]byte("tENr\x00\x03\x00\x01x"))
	f.Add(append([]byte("rNET\x00\x03\x00\x8d"), make([]byte, 141)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		reject := DecodeReject(b)
		require.True(t, reject == Reject{} || bytes.HasPrefix(b, []byte("rNET")))
		reason := reject.Reason
		require.LessOrEqual(t, len(reason), min(140, max(0, len(b)-8)))
		for i, c := range []byte(reason) {
			require.True(t, c >= ' ' && c <= '~')
			require.True(t, c == b[8+i] || c == '?')
		}
		require.Equal(t, reject, DecodeReject(reject.Append(nil)))
	})
}
