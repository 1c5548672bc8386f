package wire

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheDocumentSaysWhatIsSent compares the dumps in docs/protocol.md with
// what the encoder makes of the same messages.
func TestTheDocumentSaysWhatIsSent(t *testing.T) {
	control := func(c Control) []byte {
		b := make([]byte, ControlSize)
		c.Put(b)
		return b
	}
	immediate := func(n int) []byte { return binary.BigEndian.AppendUint32(nil, Immediate(n)) }
	sent := map[string][]byte{
		"request":                         Hello{Addr: 0x7f3a_1000_0000, RKey: 0x1a2b, Ring: 65536, Receives: 64}.Append(nil),
		"answer":                          Hello{Addr: 0x559e_2000_0000, RKey: 0x3c4d, Ring: 4096, Receives: 4}.Append(nil),
		"immediate of 13 bytes":           immediate(13),
		"CREDIT for one message":          control(Control{Type: Credit, Messages: 1}),
		"immediate of 4083 bytes":         immediate(4083),
		"CREDIT for 1024 bytes":           control(Control{Type: Credit, Bytes: 1024, Messages: 2}),
		"FIN at 4101":                     control(Control{Type: Fin, Bytes: 4101}),
		"FINACK":                          control(Control{Type: FinAck}),
		"RESET at 3":                      control(Control{Type: Reset, Bytes: 3}),
		"rejection of a request too many": Full.Append(nil),
		"rejection":                       Reject{Reason: (&VersionError{Peer: 2}).Error()}.Append(nil),
	}
	text, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	document := map[string][]byte{}
	for _, block := range strings.Split(string(text), "\n```hex ")[1:] {
		name, dump, _ := strings.Cut(block, "\n")
		dump, _, _ = strings.Cut(dump, "\n```")
		b, err := hex.DecodeString(strings.Join(strings.Fields(dump), ""))
		require.NoError(t, err, name)
		require.NotContains(t, document, name)
		document[name] = b
	}
	require.Equal(t, sent, document)
}
