package link

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A link that is to wait for its path for ever does so though one of its streams is closed.
func TestALinkWaitsForEverThoughAStreamIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		cfg.ResumeTimeout = math.MaxInt64
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 2)
		n.Cut(true)
		require.Error(t, clients[1].Close(5*time.Second))
		time.Sleep(20 * time.Second)
		n.Cut(false)
		requireEcho(t, clients[0], servers[0])
		endAll(t, n, append(clients, servers...)...)
	})
}
