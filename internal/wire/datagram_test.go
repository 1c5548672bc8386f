package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDatagramHeader(t *testing.T) {
	var b [DatagramHeaderSize]byte
	h := DatagramHeader{SourcePort: 0x1234, Sequence: 0x56789abc}
	h.Put(&b)
	require.Equal(t, [...]byte{0x5d, 1, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}, b)
	got, ok := DecodeDatagramHeader(b)
	require.True(t, ok)
	require.Equal(t, h, got)
	for i, wrong := range map[int]byte{0: 0x5c, 1: 2} {
		bad := b
		bad[i] = wrong
		_, ok := DecodeDatagramHeader(bad)
		require.False(t, ok)
	}
	DatagramHeader{}.Put(&b)
	_, ok = DecodeDatagramHeader(b)
	require.False(t, ok, "a datagram from no port")
}

// FuzzDatagramHeader: what is a header, all of whose bytes count, is taken for one, and
// nothing else.
func FuzzDatagramHeader(f *testing.F) {
	for _, h := range []DatagramHeader{{SourcePort: 1}, {SourcePort: 0xffff, Sequence: 0xffffffff}, {}} {
		var b [DatagramHeaderSize]byte
		h.Put(&b)
		f.Add(b[:])
		f.Add(append(b[:], "data"...))
		f.Add(b[:7])
	}
	f.Add([]byte{0x5d, 2, 0, 1, 0, 0, 0, 0})
	f.Add([]byte("not ours"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var b, again [DatagramHeaderSize]byte
		copy(b[:], data)
		h, ok := DecodeDatagramHeader(b)
		h.Put(&again)
		require.Equal(t, again == b && h.SourcePort != 0, ok)
	})
}
