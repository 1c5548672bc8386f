package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResolutionsSurviveTheWire(t *testing.T) {
	padding := make([]byte, 100)
	for _, want := range []ResolutionRequest{{}, {Kind: Watches, ID: 0x123456789abcdef0, Port: 1}, {Kind: Ended, ID: 7}} {
		b := want.Append(nil)
		require.Len(t, b, ResolutionRequestSize)
		got, ok := DecodeResolutionRequest(append(b, padding...))
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	want := ResolutionReply{MaxMessage: 4088, Key: 1}
	b := want.Append(nil)
	require.Len(t, b, ResolutionReplySize)
	got, ok := DecodeResolutionReply(append(b, padding...))
	require.True(t, ok)
	require.Equal(t, want, got)
}

func TestWhatIsNoResolutionIsRefused(t *testing.T) {
	request, reply := ResolutionRequest{}.Append(nil), ResolutionReply{Key: 1}.Append(nil)
	for name, change := range map[string]func(b []byte) []byte{
		"nothing":         func([]byte) []byte { return nil },
		"too short":       func(b []byte) []byte { return b[:len(b)-1] },
		"others":          func(b []byte) []byte { b[0]++; return b },
		"another version": func(b []byte) []byte { b[1]++; return b },
	} {
		_, ok := DecodeResolutionRequest(change(append([]byte(nil), request...)))
		require.False(t, ok, name)
		_, ok = DecodeResolutionReply(change(append([]byte(nil), reply...)))
		require.False(t, ok, name)
	}
	for name, wrong := range map[string]ResolutionRequest{
		"another kind":       {Kind: Ended + 1},
		"a watch of no port": {Kind: Watches},
		"a port to ask":      {Kind: Asks, Port: 1},
	} {
		_, ok := DecodeResolutionRequest(wrong.Append(nil))
		require.False(t, ok, name)
	}
	for _, key := range []uint32{0, 1 << 31} { // which privileged senders alone could use
		_, ok := DecodeResolutionReply(ResolutionReply{Key: key}.Append(nil))
		require.False(t, ok)
	}
}
