package sim_test

import (
	"testing"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/fabrictest"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

func TestContract(t *testing.T) {
	n := network(t, sim.Link{})
	pair := func(t testing.TB) (a, b fabric.Endpoint) { return connectWith(t, n, fabrictest.Options) }
	fabrictest.Test(t, pair)
	fabrictest.Strict(t, pair)
}

func TestManagerContract(t *testing.T) {
	fabrictest.Manager(t, network(t, sim.Link{}), server.Addr())
}
