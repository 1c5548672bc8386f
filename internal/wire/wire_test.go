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

func TestHelloComesBack(t *testing.T) {
	for _, g := range greetings {
		b := g.hello.Append([]byte("behind"))
		require.Equal(t, "behind", string(b[:6]))
		require.Len(t, b[6:], HelloSize)
		hello, record, err := DecodeHello(g.encoded())
		require.NoError(t, err)
		require.Equal(t, g, greeting{hello, record})
	}
}

func TestBadHelloIsRefusedWithTheReason(t *testing.T) {
	good := greetings[0].encoded()
	change := func(at int, with ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], with)
		return b
	}
	receives := func(n uint32) []byte { return change(8, binary.BigEndian.AppendUint32(nil, n)...) }
	const (
		other = "the private data are not ringnet's"
		count = ", want a multiple of 4 from 4 to 65536"
	)
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, other},
		{"a few bytes", good[:7], other},
		{"zeros", make([]byte, 56), other},
		{"another magic", change(3, 'X'), other},
		{"another version", change(4, 2, 0), "version 512 of the ringnet protocol was offered, and the side that refuses it speaks version 3"},
		{"version 0", change(4, 0, 0), "version 0 of the ringnet protocol was offered, and the side that refuses it speaks version 3"},
		{"version and length", change(4, 0, 1)[:8], "version 1 of the ringnet protocol was offered, and the side that refuses it speaks version 3"},
		{"only a header", good[:8], "handshake of 8 bytes, want 36"},
		{"no record", good[:12], "handshake of 12 bytes, want 36"},
		{"a byte missing", good[:35], "handshake of 35 bytes, want 36"},
		{"no receives", receives(0), "0 receives" + count},
		{"odd receives", receives(66), "66 receives" + count},
		{"many receives", receives(MaxReceives + 4), "65540 receives" + count},
		{"negative receives", receives(math.MaxUint32 - 3), "4294967292 receives" + count},
		{"a resumption", change(6, 0x80, 1), errResumption.Error()},
		{"a bad record", change(12, 0), "record of type 0" + anyType},
		{"a record with no ring", change(28, 0, 0, 0, 0), "OPEN with a ring of 0 bytes, want a power of two from 4096 to 1073741824"},
	} {
		hello, record, err := DecodeHello(c.data)
		require.EqualError(t, err, c.want, c.name)
		require.Zero(t, greeting{hello, record}, c.name)
	}
}

func TestAHelloNamesThePortOfItsProof(t *testing.T) {
	g := greetings[0]
	require.Zero(t, ProofPort(AppendProof(g.encoded(), 40000)), "without the feature")
	g.hello.Features = Proof
	named := AppendProof(g.encoded(), 40000)
	require.LessOrEqual(t, len(named), 56, "what the connection manager carries")
	require.Equal(t, uint16(40000), ProofPort(named))
	require.Equal(t, uint16(40000), ProofPort(append(named, make([]byte, 18)...)), "padded")
	require.Zero(t, ProofPort(named[:len(named)-1]), "cut")
	named[0]++
	require.Zero(t, ProofPort(named), "no hello")
}

func TestRejectRepeatsTheReason(t *testing.T) {
	long := strings.Repeat("no! ", 50)
	for _, c := range []struct{ reason, want string }{
		{"", ""},
		{"the backlog is full", "the backlog is full"},
		{long[:140], long[:140]},
		{long, long[:140]},
		{"line\nbreak, \x1b[31mcolour, \x00, \x7f, é", "line?break, ?[31mcolour, ?, ?, ??"},
	} {
		b := Reject{Reason: c.reason}.Append([]byte("x"))[1:]
		require.LessOrEqual(t, len(b), 148, "what the connection manager carries")
		require.Equal(t, Reject{Reason: c.want}, DecodeReject(b))
		require.Equal(t, Reject{Reason: c.want}, DecodeReject(append(b, make([]byte, 148-len(b))...)), "padded")
	}
}

func TestRejectSaysWhetherToAskAgain(t *testing.T) {
	b := Full.Append(nil)
	require.Equal(t, Full, DecodeReject(b))
	for code := range 256 {
		b[6] = byte(code)
		require.Equal(t, Reject{Busy: code == 1, Reason: Full.Reason}, DecodeReject(b), "code %d", code)
	}
}

func TestRejectOfAnotherVersionIsUnderstood(t *testing.T) {
	b := Reject{Reason: "I am from the future"}.Append(nil)
	b[4], b[5] = 0x12, 0x34
	require.Equal(t, "I am from the future", DecodeReject(b).Reason)
}

func TestRejectWithoutAReasonOfOursHasNone(t *testing.T) {
	good := Reject{Reason: "because"}.Append(nil)
	for n := range len(good) {
		require.Empty(t, DecodeReject(good[:n]), "%d bytes", n)
	}
	foreign := bytes.Clone(good)
	foreign[0] ^= 1
	require.Empty(t, DecodeReject(foreign))

	for _, n := range []byte{8, 140, math.MaxUint8} {
		b := bytes.Clone(good)
		b[7] = n
		require.Empty(t, DecodeReject(b), "length %d of 7", n)
	}
	b := append(Reject{Reason: strings.Repeat("x", 140)}.Append(nil), 'x')
	b[7] = 141
	require.Empty(t, DecodeReject(b), "more than fits")
}

// FuzzDecodeHello: what decodes is within its bounds and encodes to the same
// bytes, but for the padding, which is ignored.
func FuzzDecodeHello(f *testing.F) {
	for _, g := range greetings {
		f.Add(g.encoded())
		f.Add(append(g.encoded(), make([]byte, 20)...))
	}
	f.Add([]byte("rNET\x00\x03\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		hello, record, err := DecodeHello(b)
		if err != nil {
			require.Zero(t, greeting{hello, record})
			require.NotEmpty(t, err.Error())
			return
		}
		require.True(t, hello.Receives >= MinReceives && hello.Receives <= MaxReceives && hello.Receives%4 == 0)
		require.Equal(t, b[:HelloSize+RecordSize], greeting{hello, record}.encoded())
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
	f.Fuzz(func(t *testing.T, b []byte) {
		reject := DecodeReject(b)
		reason := reject.Reason
		require.LessOrEqual(t, len(reason), min(140, max(0, len(b)-8)))
		for i, c := range []byte(reason) {
			require.True(t, c >= ' ' && c <= '~')
			require.True(t, c == b[8+i] || c == '?')
		}
		require.Equal(t, reject, DecodeReject(reject.Append(nil)))
	})
}
