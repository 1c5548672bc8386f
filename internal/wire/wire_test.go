package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var hellos = []Hello{
	{Addr: 0x7f3a_1000_0000, RKey: 0x1a2b, Ring: 64 << 10, Receives: 64},
	{Features: math.MaxUint16, Addr: math.MaxUint64, RKey: math.MaxUint32, Ring: MaxRing, Receives: MaxReceives},
	{Ring: MinRing, Receives: MinReceives},
}

func TestHelloComesBack(t *testing.T) {
	for _, h := range hellos {
		b := h.Append([]byte("behind"))
		require.Equal(t, "behind", string(b[:6]))
		b = b[6:]
		require.Len(t, b, HelloSize)
		got, err := DecodeHello(b)
		require.NoError(t, err)
		require.Equal(t, h, got)
	}
}

func TestHelloMayBePadded(t *testing.T) {
	for _, h := range hellos {
		for _, pad := range []int{1, 24, 164} {
			got, err := DecodeHello(append(h.Append(nil), make([]byte, pad)...))
			require.NoError(t, err)
			require.Equal(t, h, got)
		}
	}
	got, err := DecodeHello(append(hellos[0].Append(nil), "a later version's"...))
	require.NoError(t, err)
	require.Equal(t, hellos[0], got)
}

func TestBadHelloIsRefusedWithTheReason(t *testing.T) {
	good := hellos[0].Append(nil)
	change := func(at int, with ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], with)
		return b
	}
	ring := func(n uint32) []byte { return change(20, binary.BigEndian.AppendUint32(nil, n)...) }
	receives := func(n uint32) []byte { return change(24, binary.BigEndian.AppendUint32(nil, n)...) }
	const (
		other = "the peer does not speak ringnet"
		size  = ", want a power of two from 4096 to 1073741824"
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
		{"another version", change(4, 1, 0), "the peer speaks version 256 of the ringnet protocol, this side version 1"},
		{"version 0", change(4, 0, 0), "the peer speaks version 0 of the ringnet protocol, this side version 1"},
		{"version and length", change(4, 0, 2)[:8], "the peer speaks version 2 of the ringnet protocol, this side version 1"},
		{"only a header", good[:8], "handshake of 8 bytes, want 32"},
		{"a byte missing", good[:31], "handshake of 31 bytes, want 32"},
		{"no ring", ring(0), "ring of 0 bytes" + size},
		{"a small ring", ring(MinRing / 2), "ring of 2048 bytes" + size},
		{"an odd ring", ring(MinRing + 1), "ring of 4097 bytes" + size},
		{"a large ring", ring(MaxRing * 2), "ring of 2147483648 bytes" + size},
		{"the largest ring", ring(math.MaxUint32), "ring of 4294967295 bytes" + size},
		{"no receives", receives(0), "0 receives" + count},
		{"odd receives", receives(66), "66 receives" + count},
		{"many receives", receives(MaxReceives + 4), "65540 receives" + count},
		{"negative receives", receives(math.MaxUint32 - 3), "4294967292 receives" + count},
	} {
		got, err := DecodeHello(c.data)
		require.EqualError(t, err, c.want, c.name)
		require.Zero(t, got, c.name)
	}
}

func TestAnotherVersionIsAnErrorOfItsOwn(t *testing.T) {
	b := hellos[0].Append(nil)
	b[5] = 7
	_, err := DecodeHello(b)
	var version *VersionError
	require.ErrorAs(t, err, &version)
	require.Equal(t, uint16(7), version.Peer)
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

func TestImmediateIsTheLength(t *testing.T) {
	for _, n := range []int{1, 13, 4096, MaxRing} {
		require.Equal(t, uint32(n), Immediate(n))
		got, err := DecodeImmediate(Immediate(n), n)
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
	for _, c := range []struct {
		imm  uint32
		n    int
		want string
	}{
		{0, 0, "data message of 0 bytes with immediate 0"},
		{1, 0, "data message of 0 bytes with immediate 1"},
		{0, 1, "data message of 1 bytes with immediate 0"},
		{5, 4, "data message of 4 bytes with immediate 5"},
		{MaxRing + 1, MaxRing + 1, "data message of 1073741825 bytes with immediate 1073741825"},
		{math.MaxUint32, -1, "data message of -1 bytes with immediate 4294967295"},
		{math.MaxUint32, math.MaxUint32, "data message of 4294967295 bytes with immediate 4294967295"},
		{4, 1<<32 + 4, "data message of 4294967300 bytes with immediate 4"},
	} {
		got, err := DecodeImmediate(c.imm, c.n)
		require.EqualError(t, err, c.want)
		require.Zero(t, got)
	}
}

var controls = []Control{
	{Type: Credit},
	{Type: Credit, Bytes: 1 << 40, Messages: 77},
	{Type: Credit, Bytes: math.MaxUint64, Messages: math.MaxUint64},
	{Type: Fin},
	{Type: Fin, Bytes: math.MaxUint64},
	{Type: FinAck},
	{Type: Reset},
	{Type: Reset, Bytes: 12345},
}

func TestControlComesBack(t *testing.T) {
	for _, c := range controls {
		b := bytes.Repeat([]byte{0xff}, ControlSize+1)
		c.Put(b)
		require.Equal(t, byte(0xff), b[ControlSize], "not beyond its size")
		got, err := DecodeControl(b[:ControlSize])
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	require.Panics(t, func() { controls[0].Put(make([]byte, ControlSize-1)) })
}

func TestBadControlIsRefusedWithTheReason(t *testing.T) {
	encoded := func(c Control) []byte {
		b := make([]byte, ControlSize)
		c.Put(b)
		return b
	}
	flip := func(c Control, at int) []byte {
		b := encoded(c)
		b[at] ^= 1
		return b
	}
	type bad struct {
		data []byte
		want string
	}
	cases := []bad{
		{nil, "control message of 0 bytes, want 24"},
		{encoded(Control{Type: Fin})[:23], "control message of 23 bytes, want 24"},
		{append(encoded(Control{Type: Fin}), 0), "control message of 25 bytes, want 24"},
		{make([]byte, ControlSize), "control message of unknown type 0"},
		{encoded(Control{Type: 5}), "control message of unknown type 5"},
		{encoded(Control{Type: 255, Bytes: 1}), "control message of unknown type 255"},
		{encoded(Control{Type: Fin, Messages: 1}), "FIN with bits set that must be zero"},
		{encoded(Control{Type: Reset, Messages: 1 << 63}), "RESET with bits set that must be zero"},
		{encoded(Control{Type: FinAck, Bytes: 1}), "FINACK with bits set that must be zero"},
		{encoded(Control{Type: FinAck, Messages: 1}), "FINACK with bits set that must be zero"},
	}
	for at := 1; at < 8; at++ {
		cases = append(cases, bad{flip(Control{Type: Credit, Bytes: 9}, at), "CREDIT with bits set that must be zero"})
	}
	for _, c := range cases {
		got, err := DecodeControl(c.data)
		require.EqualError(t, err, c.want)
		require.Zero(t, got)
	}
}

func TestTypesHaveNames(t *testing.T) {
	require.Equal(t, "CREDIT FIN FINACK RESET type 9",
		strings.Join([]string{Credit.String(), Fin.String(), FinAck.String(), Reset.String(), Type(9).String()}, " "))
}

// FuzzDecodeHello: what decodes is within its bounds and encodes to the same
// bytes, but for the reserved ones and the padding, which are ignored.
func FuzzDecodeHello(f *testing.F) {
	for _, h := range hellos {
		f.Add(h.Append(nil))
		f.Add(append(h.Append(nil), make([]byte, 24)...))
	}
	f.Add([]byte("rNET\x00\x02\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHello(b)
		if err != nil {
			require.Zero(t, h)
			require.NotEmpty(t, err.Error())
			return
		}
		require.True(t, h.Ring >= MinRing && h.Ring <= MaxRing && h.Ring&(h.Ring-1) == 0)
		require.True(t, h.Receives >= MinReceives && h.Receives <= MaxReceives && h.Receives%4 == 0)
		again := h.Append(nil)
		require.Equal(t, b[:28], again[:28])
		require.Equal(t, make([]byte, 4), again[28:])
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

// FuzzRejectAppend: any reason fits the connection manager.
func FuzzRejectAppend(f *testing.F) {
	f.Add("because")
	f.Add(strings.Repeat("é", 100))
	f.Fuzz(func(t *testing.T, reason string) {
		b := Reject{Reason: reason}.Append(nil)
		require.LessOrEqual(t, len(b), 148)
		require.Len(t, DecodeReject(b).Reason, min(140, len(reason)))
	})
}

func FuzzDecodeImmediate(f *testing.F) {
	f.Add(uint32(13), int64(13))
	f.Add(uint32(math.MaxUint32), int64(-1))
	f.Add(uint32(0), int64(1<<32))
	f.Fuzz(func(t *testing.T, imm uint32, n int64) {
		got, err := DecodeImmediate(imm, int(n))
		if err != nil {
			require.Zero(t, got)
			return
		}
		require.True(t, got >= 1 && got <= MaxRing)
		require.Equal(t, n, int64(got))
		require.Equal(t, imm, Immediate(got))
	})
}

// FuzzDecodeControl: what decodes encodes to the same bytes, all of them.
func FuzzDecodeControl(f *testing.F) {
	for _, c := range controls {
		b := make([]byte, ControlSize)
		c.Put(b)
		f.Add(b)
	}
	f.Add(make([]byte, ControlSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeControl(b)
		if err != nil {
			require.Zero(t, c)
			return
		}
		again := make([]byte, ControlSize)
		c.Put(again)
		require.Equal(t, b, again)
	})
}
