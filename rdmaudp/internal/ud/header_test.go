package ud

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzHeader: what is a header, all of whose bytes count, is taken for one, and
// nothing else.
func FuzzHeader(f *testing.F) {
	for _, h := range []Header{{SourcePort: 1}, {SourcePort: 0xffff, Sequence: 0xffffffff}, {}} {
		var b [HeaderSize]byte
		h.Put(&b)
		f.Add(b[:])
		f.Add(append(b[:], "data"...))
		f.Add(b[:7])
	}
	f.Add([]byte{0x5d, 2, 0, 1, 0, 0, 0, 0})
	f.Add([]byte("not ours"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var b, again [HeaderSize]byte
		copy(b[:], data)
		h, ok := DecodeHeader(b)
		h.Put(&again)
		require.Equal(t, again == b && h.SourcePort != 0, ok)
	})
}
