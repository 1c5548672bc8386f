package sim_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// place writes what from holds to the peer's memory, and returns how that ended.
func place(t *testing.T, a fabric.Endpoint, from fabric.Memory, addr uint64, rkey uint32) fabric.Status {
	post(t, a, fabric.WorkRequest{Op: fabric.Write, Data: from.Bytes(), Memory: from, Signaled: true, RemoteAddr: addr, RKey: rkey})
	return poll(t, a)[0].Status
}

func TestMemoryOutlivesItsEndpoint(t *testing.T) {
	n := network(t, sim.Link{})
	a, b := connect(t, n)
	from, to := register(t, a, 4096, fabric.LocalWrite), register(t, b, 4096, fabric.RemoteWrite)
	dropped := register(t, b, 4096, fabric.RemoteWrite)
	addr, before := to.Addr(), to.RKey()
	copy(from.Bytes(), "first")
	require.Equal(t, fabric.OK, place(t, a, from, addr, before))
	require.Error(t, a.Leave(from), "a device may still look at it")
	require.NoError(t, a.Disconnect())
	require.NoError(t, b.Disconnect())
	require.Error(t, a.Leave(to), "it is b's")
	require.NoError(t, a.Leave(from))
	require.NoError(t, b.Leave(to))
	require.NoError(t, b.Leave(dropped))
	assert.True(t, dropped.Free())
	assert.Equal(t, "first", string(to.Bytes()[:5]))

	c, d := connect(t, n)
	require.NoError(t, c.Adopt(from))
	require.NoError(t, d.Adopt(to))
	assert.Equal(t, addr, to.Addr())
	assert.NotEqual(t, before, to.RKey())
	copy(from.Bytes(), "second")
	require.Equal(t, fabric.OK, place(t, c, from, addr, to.RKey()))
	assert.Equal(t, "second", string(to.Bytes()[:6]))
	assert.Equal(t, fabric.RemoteAccess, place(t, c, from, addr, before), "the old key")
}
