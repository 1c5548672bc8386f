package endpoint

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What others have written moves no cursor, and JSON means the same.
func TestATerminalMayShowWhatOthersWrote(t *testing.T) {
	const words = "\u009b2J \u202e \x07\x1b[2J \U000e0041 中文 é \"x\"\n\x7f"
	var out strings.Builder
	require.NoError(t, json.NewEncoder(Shown{&out, true}).Encode(words))
	require.NotRegexp(t, `[^\PC\n]`, out.String())
	var read string
	require.NoError(t, json.Unmarshal([]byte(out.String()), &read))
	require.Equal(t, words, read)

	out.Reset()
	n, err := Shown{Writer: &out}.Write([]byte(words))
	require.NoError(t, err)
	require.Len(t, words, n)
	require.Equal(t, "\ufffd2J \ufffd \ufffd\ufffd[2J \ufffd 中文 é \"x\"\n\ufffd", out.String())
}
