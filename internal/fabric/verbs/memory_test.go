//go:build linux && cgo

package verbs

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// place writes what from holds to the peer's memory, and returns how that ended.
func place(t *testing.T, a fabric.Endpoint, from fabric.Memory, addr uint64, rkey uint32) fabric.Status {
	t.Helper()
	require.NoError(t, a.PostSend([]fabric.WorkRequest{{Op: fabric.Write, Data: from.Bytes(), Memory: from, Signaled: true, RemoteAddr: addr, RKey: rkey}}))
	return poll(t, a, 1)[0].Status
}

func TestMemoryOutlivesItsEndpoint(t *testing.T) {
	a, b := pair(t)
	from, to := register(t, a, 4096, fabric.LocalWrite), register(t, b, 4096, fabric.RemoteWrite)
	dropped := register(t, b, 4096, fabric.RemoteWrite)
	addr := to.Addr()
	copy(from.Bytes(), "first")
	require.Equal(t, fabric.OK, place(t, a, from, addr, to.RKey()))
	require.NoError(t, a.Disconnect())
	require.NoError(t, b.Disconnect())
	require.Error(t, a.(fabric.Mover).Leave(to), "it is b's")
	require.NoError(t, a.(fabric.Mover).Leave(from))
	for _, m := range []fabric.Memory{to, dropped} {
		require.NoError(t, b.(fabric.Mover).Leave(m))
	}
	assert.True(t, dropped.Free())
	assert.Equal(t, "first", string(to.Bytes()[:5]))

	c, d := pair(t)
	require.NoError(t, c.(fabric.Mover).Adopt(from))
	require.NoError(t, d.(fabric.Mover).Adopt(to))
	assert.Equal(t, addr, to.Addr())
	copy(from.Bytes(), "second")
	require.Equal(t, fabric.OK, place(t, c, from, addr, to.RKey()))
	assert.Equal(t, "second", string(to.Bytes()[:6]))
	require.Error(t, c.(fabric.Mover).Adopt(to), "it is d's")
}
