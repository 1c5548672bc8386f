package ud

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSourceOf(t *testing.T) {
	for text, want := range map[string]string{"127.0.0.1:9": "127.0.0.1", "[::ffff:127.0.0.1]:9": "127.0.0.1"} {
		a, err := SourceOf(netip.MustParseAddrPort(text))
		require.NoError(t, err)
		require.Equal(t, want, a.String())
	}
}
