package wire

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var secret = [SecretSize]byte{1, 2, 3, 15: 16}

func TestAHelloSaysWhereTheLinkIsTakenUpAgain(t *testing.T) {
	g := greetings[0]
	r := Reconnect{Port: 40000, Link: math.MaxUint64, Secret: secret}
	for i := range 10 {
		r.Others = append(r.Others, netip.AddrFrom4([4]byte{10, 0, byte(i), 1}))
	}
	r.Others[0] = netip.MustParseAddr("fd00::1")
	_, ok := RequestedReconnect(r.AppendRequest(g.encoded()))
	require.False(t, ok, "without the feature")
	g.hello.Features = Resume | Proof

	request := r.AppendRequest(AppendProof(g.encoded(), 5))
	require.Len(t, request, 44, "what the connection manager carries, and the mailbox leaves")
	got, ok := RequestedReconnect(request)
	require.True(t, ok)
	require.Equal(t, Reconnect{Port: 40000, Others: r.Others[1:2]}, got)
	require.Equal(t, uint16(5), ProofPort(request))

	answer := r.AppendAnswer(g.encoded())
	require.LessOrEqual(t, len(answer), answerRoom, "what the connection manager carries, and the mailbox leaves")
	r.Others = r.Others[:7]
	for range 2 {
		got, ok = AnsweredReconnect(append(answer, make([]byte, answerRoom-len(answer))...))
		require.True(t, ok)
		require.Equal(t, r, got)
		r.Others = nil
		answer = r.AppendAnswer(g.encoded())
	}
}

// TestResumptionCannotBeForged changes every bit of one, and who made it for whom.
func TestResumptionCannotBeForged(t *testing.T) {
	seal := Seal{secret, netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::2%eth0")}
	r := Resumption{Kind: ResumeAnswer, Passive: true, Link: math.MaxUint64, Attempt: 2, Taken: math.MaxUint32}
	good := r.Append(nil, seal)
	require.LessOrEqual(t, len(good), 44, "what the connection manager carries, and the mailbox leaves")
	got, err := DecodeResumption(append(good, make([]byte, 140)...))
	require.NoError(t, err)
	require.Equal(t, r, got)
	require.True(t, Seal{secret, seal.From, seal.To.WithZone("eth1")}.Fits(good))
	for _, other := range []Seal{
		{[SecretSize]byte{}, seal.From, seal.To},
		{secret, seal.From, seal.From},
		{secret, netip.IPv4Unspecified(), seal.To},
	} {
		require.False(t, other.Fits(good))
	}
	for i := range len(good) * 8 {
		bad := slices.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		_, err := DecodeResumption(bad)
		require.False(t, err == nil && seal.Fits(bad), "bit %d", i)
	}
}

func TestRekeyChangesWhatRecordsTellOfRings(t *testing.T) {
	regions := Regions{{0x9000, 0x1000, 3}, {0x1000, 0x2000, 1}, {0x3000, 0x1000, 2}}
	regions.Sort()
	for addr, want := range map[uint64]uint32{0: 7, 0xfff: 7, 0x1000: 1, 0x2fff: 1, 0x3000: 2, 0x3fff: 2, 0x4000: 7, 0x9000: 3, 0xa000: 7, math.MaxUint64: 7} {
		for _, r := range goodRecords {
			r.Ring.Addr, r.Ring.RKey, r.Ring.Size = addr, 7, MinRing
			b := encoded(r)
			regions.Rekey(b)
			r.Ring.RKey = want
			require.Equal(t, encoded(r), b, "%+v", r)
		}
	}
}

// FuzzReturn: what is taken for the end of a hello that says where its link is taken up
// again encodes to the same bytes, as far as there is room.
func FuzzReturn(f *testing.F) {
	g := greetings[0]
	g.hello.Features = Resume
	r := Reconnect{Port: 40000, Link: math.MaxUint64, Secret: secret, Others: []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")}}
	f.Add(r.AppendRequest(g.encoded()))
	f.Add(r.AppendRequest(g.encoded())[:returnAt+1])
	f.Add(r.AppendAnswer(g.encoded()))
	f.Add(Reconnect{}.AppendRequest(g.encoded()))
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
	seal := Seal{secret, netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")}
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
	f.Add(Keys{More: true, Regions: make([]Region, MaxRegions)}.Append(nil))
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
