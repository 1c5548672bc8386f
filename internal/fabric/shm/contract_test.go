//go:build linux

package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/fabrictest"
)

func TestContract(t *testing.T) {
	pair := func(t testing.TB) (a, b fabric.Endpoint) {
		o := fabrictest.Options
		o.RemoteMemory += ringSize // which connected registers
		return connected(t, o)
	}
	fabrictest.Test(t, pair)
	fabrictest.Strict(t, pair)
}

func TestFabricIsOne(t *testing.T) {
	one, err := Fabric()
	require.NoError(t, err)
	again, err := Fabric()
	require.NoError(t, err)
	require.Same(t, one, again)
}

func TestManagerContract(t *testing.T) {
	leavesNothing(t)
	lenientToo(t, func(t *testing.T, f *shm) { fabrictest.Manager(t, f, host) })
}
