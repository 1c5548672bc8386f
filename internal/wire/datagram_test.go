package wire

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

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

// FuzzProof: what is encoded decodes to the same, and nothing else decodes.
func FuzzProof(f *testing.F) {
	for _, from := range []string{"1.2.3.4:5", "[fe80::1]:65535"} {
		var b [DatagramHeaderSize]byte
		ProofHeader{ProofQuestion, 7}.Put(&b)
		f.Add(b[:], ProofRequest{Nonce: [ProofNonceSize]byte{1}, From: netip.MustParseAddrPort(from)}.Append(nil))
	}
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, header, request []byte) {
		var b, again [DatagramHeaderSize]byte
		copy(b[:], header)
		if h, ok := DecodeProofHeader(b); ok {
			h.Put(&again)
			require.Equal(t, b[:5], again[:5])
		}
		if r, ok := DecodeProofRequest(request); ok {
			encoded := r.Append(nil)
			request[ProofNonceSize+1] = 0
			require.Equal(t, request, encoded)
		}
	})
}
