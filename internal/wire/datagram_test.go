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
