package sim_test

import (
	"testing"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/fabrictest"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestContract(t *testing.T) {
	n := network(t, sim.Link{})
	fabrictest.Test(t, func(t testing.TB) (a, b fabric.Endpoint) {
		return connectWith(t, n, fabrictest.Options)
	})
}
