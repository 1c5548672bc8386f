package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestBytesArrive(t *testing.T) {
	a, b := connect(t, sim.New(sim.Link{}), options)
	m, err := b.Register(100, fabric.RemoteWrite)
	require.NoError(t, err)
	require.NoError(t, a.PostSend([]fabric.WorkRequest{
		{ID: 1, Op: fabric.WriteImm, Data: []byte("abc"), RemoteAddr: m.Addr() + 5, RKey: m.RKey(), Imm: 7, Signaled: true},
		{ID: 2, Op: fabric.Send, Data: []byte("defg"), Signaled: true},
	}))
	var c [4]fabric.Completion
	n, err := b.Poll(c[:])
	require.NoError(t, err)
	require.Equal(t, []fabric.Completion{
		{Recv: true, Op: fabric.WriteImm, Imm: 7, Len: 3},
		{Recv: true, Op: fabric.Send, Len: 4, Data: []byte("defg")},
	}, c[:n])
	require.Equal(t, "abc", string(m.Bytes()[5:8]))
	n, err = a.Poll(c[:])
	require.NoError(t, err)
	require.Equal(t, []fabric.Completion{{ID: 1}, {ID: 2}}, c[:n])
}
