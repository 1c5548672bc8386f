package ud

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzResolution: what is taken for a message is one, which means the same when it is
// sent on, and may have anything behind it.
func FuzzResolution(f *testing.F) {
	for _, r := range []request{{}, {Kind: watchKind, ID: 1 << 63, Port: 1}, {Kind: endedKind, ID: 7}, {Kind: endedKind + 1}, {Kind: watchKind}, {Port: 1}} {
		b := r.append(nil)
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(append(b, make([]byte, 180-len(b))...)) // as it arrives
	}
	for _, r := range []reply{{MaxMessage: 4088, Key: 1}, {MaxMessage: 0xffff, Key: 1<<31 - 1}, {}, {Key: 1 << 31}} {
		b := r.append(nil)
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(append(b, make([]byte, 136-len(b))...))
	}
	f.Add([]byte{0x5e, 1, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1})
	f.Add([]byte{0x5d, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1})
	f.Add([]byte{0x5d, 1, 1, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := decodeRequest(b); ok {
			again := r.append(nil)
			require.Equal(t, b[:3], again[:3])
			require.Equal(t, b[4:requestSize], again[4:], "all but the byte that is reserved")
			require.Equal(t, r.Kind == watchKind, r.Port != 0)
			require.LessOrEqual(t, r.Kind, endedKind)
		}
		if r, ok := decodeReply(b); ok {
			require.Equal(t, b[:replySize], r.append(nil))
			require.NotZero(t, r.Key)
			require.Less(t, r.Key, uint32(1<<31))
		}
	})
}
