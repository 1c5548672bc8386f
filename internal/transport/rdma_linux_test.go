package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// What rdma is used for by a Config has to reach the fabric before it makes a queue pair.
func TestConfigReachesRDMA(t *testing.T) {
	for _, c := range []link.Config{{TrafficClass: 104}, {Vectors: "0-3"}, {Inline: 64}} {
		f, err := openRDMA(nil, &c)
		rdmatest.Opened(t, err)
		want, err := verbs.New(verbs.Config{TrafficClass: c.TrafficClass, Vectors: c.Vectors, Inline: c.Inline})
		require.NoError(t, err)
		require.Equal(t, want, f)
		none, err := verbs.Fabric()
		require.NoError(t, err)
		require.NotEqual(t, none, f)
	}
}
