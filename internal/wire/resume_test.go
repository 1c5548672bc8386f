package wire

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
)

var secret = [SecretSize]byte{1, 2, 3, 15: 16}

func TestAHelloSaysWhereTheLinkIsTakenUpAgain(t *testing.T) {
	g := greetings[0]
	r := Reconnect{Port: 40000, Link: math.MaxUint64, Secret: secret}
	_, ok := RequestedReconnect(r.AppendRequest(g.encoded()))
	require.False(t, ok, "without the feature")
	g.hello.Features = Resume
	request := r.AppendRequest(g.encoded())
	require.LessOrEqual(t, len(request), 44, "what the connection manager carries, and the mailbox leaves")
	got, ok := RequestedReconnect(append(request, make([]byte, 10)...))
	require.True(t, ok)
	require.Equal(t, Reconnect{Port: 40000}, got)
	got, ok = AnsweredReconnect(append(r.AppendAnswer(g.encoded()), make([]byte, 10)...))
	require.True(t, ok)
	require.Equal(t, r, got)

	g.hello.Features |= Proof
	both := r.AppendRequest(AppendProof(g.encoded(), 5))
	require.Equal(t, uint16(5), ProofPort(both))
	got, _ = RequestedReconnect(both)
	require.Equal(t, uint16(40000), got.Port)
	for _, cut := range [][]byte{request[:len(request)-1], Reconnect{}.AppendRequest(g.encoded())} {
		_, ok = RequestedReconnect(cut)
		require.False(t, ok)
	}
	_, ok = AnsweredReconnect(r.AppendAnswer(g.encoded())[:63])
	require.False(t, ok)
}

func TestAHelloTellsOfAsManyOtherCardsAsItHasRoomFor(t *testing.T) {
	g := greetings[0]
	g.hello.Features = Resume
	r := Reconnect{Port: 40000, Link: 1, Secret: secret}
	for i := range 10 {
		r.Others = append(r.Others, netip.AddrFrom4([4]byte{10, 0, byte(i), 1}))
	}
	r.Others[0] = netip.MustParseAddr("fd00::1")

	request := r.AppendRequest(g.encoded())
	require.Len(t, request, 44, "what the connection manager carries, and the mailbox leaves")
	got, ok := RequestedReconnect(request)
	require.True(t, ok)
	require.Equal(t, r.Others[1:2], got.Others)

	answer := r.AppendAnswer(g.encoded())
	require.LessOrEqual(t, len(answer), answerRoom, "what the connection manager carries, and the mailbox leaves")
	for _, b := range [][]byte{answer, append(answer, make([]byte, answerRoom-len(answer))...)} {
		got, ok = AnsweredReconnect(b)
		require.True(t, ok)
		require.Equal(t, r.Others[:7], got.Others)
		require.Equal(t, r.Link, got.Link)
	}
	r.Others = nil
	got, ok = AnsweredReconnect(append(r.AppendAnswer(g.encoded()), make([]byte, 100)...))
	require.True(t, ok)
	require.Equal(t, r, got)
}

var seal = Seal{secret, netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::2%eth0")}

func TestResumptionComesBack(t *testing.T) {
	for _, r := range []Resumption{
		{Kind: ResumeRequest, Link: 1, Attempt: 2, Taken: 3},
		{Kind: ResumeAnswer, Passive: true, Link: math.MaxUint64, Attempt: math.MaxUint32},
		{Kind: ResumeRequest, Passive: true},
	} {
		b := r.Append(nil, seal)
		require.Len(t, b, ResumptionSize)
		require.LessOrEqual(t, len(b), 44, "what the connection manager carries, and the mailbox leaves")
		padded := append(b, make([]byte, 140)...)
		got, err := DecodeResumption(padded)
		require.NoError(t, err)
		require.Equal(t, r, got)
		require.True(t, seal.Fits(padded))
		require.True(t, Seal{secret, seal.From.WithZone("eth0"), seal.To.WithZone("eth1")}.Fits(padded))
		for _, other := range []Seal{
			{[SecretSize]byte{}, seal.From, seal.To},
			{secret, seal.To, seal.From},
			{secret, seal.From, seal.From},
			{secret, netip.IPv4Unspecified(), seal.To},
		} {
			require.False(t, other.Fits(padded))
		}
		_, _, err = DecodeHello(b)
		require.Error(t, err, "it is no hello")
	}
}

// TestResumptionCannotBeForged changes every bit of one.
func TestResumptionCannotBeForged(t *testing.T) {
	good := Resumption{Kind: ResumeRequest, Link: 1, Attempt: 2}.Append(nil, seal)
	for i := range len(good) * 8 {
		bad := slices.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		_, err := DecodeResumption(bad)
		require.False(t, err == nil && seal.Fits(bad), "bit %d", i)
	}
}

func TestKeysComeBack(t *testing.T) {
	full := Keys{More: true, Regions: make([]Region, MaxRegions)}
	for i := range full.Regions {
		full.Regions[i] = Region{math.MaxUint64 - uint64(i), uint32(i), math.MaxUint32 - uint32(i)}
	}
	for _, k := range []Keys{{}, full, {Received: Header{3, math.MaxUint64}, Regions: full.Regions[:1]}} {
		b := k.Append(nil)
		require.LessOrEqual(t, len(b), MessageSize)
		got, err := DecodeKeys(b)
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
}

func TestRegionsKnowTheKeyOfARing(t *testing.T) {
	r := Regions{{0x9000, 0x1000, 3}, {0x1000, 0x2000, 1}, {0x3000, 0x1000, 2}}
	r.Sort()
	for addr, want := range map[uint64]uint32{0: 7, 0xfff: 7, 0x1000: 1, 0x2fff: 1, 0x3000: 2, 0x3fff: 2, 0x4000: 7, 0x9000: 3, 0xa000: 7, math.MaxUint64: 7} {
		require.Equal(t, want, r.Key(RingPlace{Addr: addr, RKey: 7}), "%#x", addr)
	}
	require.Equal(t, uint32(7), Regions(nil).Key(RingPlace{RKey: 7}))
}

func TestRekeyChangesWhatRecordsTellOfRings(t *testing.T) {
	regions := Regions{{0x1000, 0x1000, 8}}
	ring := RingPlace{Addr: 0x1000, RKey: 7, Size: MinRing}
	for _, r := range []Record{
		{Type: credit.OpenRecord, Stream: 1, Ring: ring, Port: 5},
		{Type: credit.AcceptRecord, Stream: 1, Ring: ring},
		{Type: credit.RingRecord, Stream: 1, Ring: ring},
	} {
		b := encoded(r)
		regions.Rekey(b)
		r.Ring.RKey = 8
		require.Equal(t, encoded(r), b)
	}
	other := encoded(Record{Type: credit.CreditRecord, Stream: 1, Position: 0x1000})
	b := slices.Clone(other)
	regions.Rekey(b)
	require.Equal(t, other, b)
}

// FuzzReturn: what is taken for the end of a hello that says where its link is taken up
// again encodes to the same bytes, as far as there is room.
func FuzzReturn(f *testing.F) {
	g := greetings[0]
	g.hello.Features = Resume
	r := Reconnect{Port: 40000, Link: math.MaxUint64, Secret: secret, Others: []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")}}
	f.Add(r.AppendRequest(g.encoded()))
	f.Add(r.AppendAnswer(g.encoded()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := RequestedReconnect(b); ok {
			require.NotZero(t, r.Port)
			again := r.AppendRequest(slices.Clone(b[:returnAt]))
			require.Equal(t, again, b[:len(again)])
		}
		if r, ok := AnsweredReconnect(b); ok {
			require.NotZero(t, r.Port)
			again := r.AppendAnswer(slices.Clone(b[:returnAt]))
			require.LessOrEqual(t, len(again), answerRoom)
			require.Equal(t, again, b[:len(again)])
		}
	})
}

// FuzzDecodeResumption: what decodes encodes to the same body, and fits a seal only with
// the code that the seal makes.
func FuzzDecodeResumption(f *testing.F) {
	for kind := range resumptionKinds + 1 {
		b := Resumption{Kind: kind, Passive: true, Link: 1, Attempt: 2, Taken: 3}.Append(nil, seal)
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(Resumption{Kind: kind, Link: 1, Attempt: 2}.Append(nil, seal))
	}
	f.Add(append(Hello{Features: Dedicated}.Append(nil), make([]byte, ResumptionSize)...)) // whose bits would be a kind
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeResumption(b)
		if err != nil {
			require.Zero(t, r)
			return
		}
		require.True(t, r.Kind == ResumeRequest || r.Kind == ResumeAnswer)
		require.GreaterOrEqual(t, len(b), ResumptionSize)
		again := r.Append(nil, seal)
		require.Equal(t, again[:resumptionBody], b[:resumptionBody])
		require.Equal(t, bytes.Equal(again, b[:ResumptionSize]), seal.Fits(b))
	})
}

// FuzzDecodeKeys: what decodes encodes to the same bytes, all of them.
func FuzzDecodeKeys(f *testing.F) {
	b := Keys{Received: Header{3, math.MaxUint64}, Regions: []Region{{0x1000, 0x2000, 1}, {math.MaxUint64, math.MaxUint32, 2}}}.Append(nil)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add(b[:HeaderSize])
	f.Add(append(b, 0))
	f.Add(Keys{More: true, Regions: make([]Region, MaxRegions-1)}.Append(nil))
	f.Add(append(make([]byte, HeaderSize), 2, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := DecodeKeys(b)
		if err != nil {
			require.Zero(t, k)
			return
		}
		require.Equal(t, b, k.Append(nil))
		require.True(t, !k.More || len(k.Regions) == MaxRegions)
	})
}
