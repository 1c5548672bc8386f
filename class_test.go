package ringnet

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A fabric gets what it must know before it connects, such as the traffic class, when it is
// opened.
func TestConfigOfEachSideReachesItsFabric(t *testing.T) {
	n := sim.New(sim.Link{})
	var class int
	addNetwork(t, "sim", network{&carrier{name: "sim", open: func(_ trustUser, c *Config) (fabric.Fabric, error) {
		class = c.TrafficClass
		return n, nil
	}}, "ip"})

	l, err := (&ListenConfig{Config: &Config{TrafficClass: 104}}).Listen(context.Background(), "sim", "10.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, 104, class)
	dial(t, &Dialer{Config: &Config{TrafficClass: 106}}, "sim", l.Addr().String())
	require.Equal(t, 106, class)
}
