//go:build linux

package shm

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

var frames = []frame{
	{kind: req, source: netip.MustParseAddrPort("[fe80::1%eth0]:49152"), target: netip.MustParseAddrPort("127.0.0.1:80"), private: []byte("hello"), shape: shape{region: 1 << 20, rkey: 7, recvQueue: 267, recvSize: 24}},
	{kind: rep, private: make([]byte, fabric.MaxAcceptData), shape: shape{recvQueue: 1}},
	{kind: rtu, private: []byte{}},
	{kind: rej, reason: 28, private: []byte("no"), text: "because"},
}

func TestFramesOfOtherVersionsNameTheVersion(t *testing.T) {
	b := frames[0].encode()
	b[4] = 9
	_, err := decodeFrame(b)
	require.ErrorContains(t, err, "version 9")
}

func TestFramesTextIsPrintableAndShort(t *testing.T) {
	f := frame{kind: rej, text: "\x1b[31m" + strings.Repeat("x", 300)}
	got, err := decodeFrame(f.encode())
	require.NoError(t, err)
	assert.Equal(t, "?[31m"+strings.Repeat("x", 123), got.text)
}

func FuzzFrame(f *testing.F) {
	for _, frame := range frames {
		b := frame.encode()
		f.Add(b)
		f.Add(append(b, 0))
		b[5] = 9 // of no kind
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeFrame(b)
		if err != nil {
			return
		}
		again, err := decodeFrame(got.encode())
		require.NoError(t, err)
		require.Equal(t, got, again)
		if got.kind == rej && !bytes.Contains(b, []byte(got.text)) && !strings.Contains(got.text, "?") {
			t.Errorf("text %q was not there", got.text)
		}
	})
}
