package ud

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The dumps in protocol.md are what the encoder makes of the same messages.
func TestTheDocumentSaysWhatIsSent(t *testing.T) {
	const id = 0x0123_4567_89ab_cdef
	var header [HeaderSize]byte
	Header{SourcePort: 40000}.Put(&header)
	sent := map[string][]byte{
		"datagram":                      append(header[:], "ping"...),
		"request to watch a queue pair": request{Kind: watchKind, ID: id, Port: 40000}.append(nil),
		"request for a queue pair":      request{Kind: askKind, ID: id}.append(nil),
		"notice of a queue pair's end":  request{Kind: endedKind, ID: id}.append(nil),
		"reply with a queue pair":       reply{MaxMessage: 4088, Key: 0x5a3c_0f01}.append(nil),
	}
	text, err := os.ReadFile("../../protocol.md")
	require.NoError(t, err)
	dumps := map[string][]byte{}
	for _, block := range strings.Split(string(text), "\n```hex ")[1:] {
		name, dump, _ := strings.Cut(block, "\n")
		dump, _, _ = strings.Cut(dump, "\n```")
		dumps[name], err = hex.DecodeString(strings.Join(strings.Fields(dump), ""))
		require.NoError(t, err, name)
	}
	require.Equal(t, sent, dumps)
}
