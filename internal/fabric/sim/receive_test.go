// The receive queue and registered memory: what a message meets on arrival.

package sim_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestReceivedDataIsPoisonedByTheNextPostRecv(t *testing.T) {
	a, b := connect(t, network(t, sim.Link{}))
	post(t, a, send(1, "abc"), send(2, "def"))
	c := poll(t, b)
	require.Equal(t, "abcdef", string(c[0].Data)+string(c[1].Data))
	require.NoError(t, b.PostRecv(1))
	assert.Equal(t, bytes.Repeat([]byte{sim.Poison}, 3), c[1].Data)
}

func TestMemoryIsPageAlignedAndPoisonedByClose(t *testing.T) {
	n := network(t, sim.Link{})
	l := listen(t, n, 1)
	a := dial(t, n)
	m := register(t, a, 5000, fabric.LocalWrite)
	assert.Zero(t, m.Addr()%4096)
	assert.Equal(t, make([]byte, 8192), m.Bytes())
	require.NoError(t, a.Close())
	assert.Equal(t, bytes.Repeat([]byte{sim.Poison}, 8192), m.Bytes())
	assert.PanicsWithValue(t, "sim: PostRecv after Close", func() { a.PostRecv(1) })
	assert.PanicsWithValue(t, "sim: Poll after Close", func() { a.Poll(make([]fabric.Completion, 1)) })
	a.Wake()
	require.NoError(t, l.Close())
}

func TestMemoryThatIsGivenBackIsOutOfThePeersReach(t *testing.T) {
	for keeps, want := range map[bool]fabric.Status{false: fabric.RemoteAccess, true: fabric.OK} {
		a, b := connect(t, network(t, sim.Link{KeepMemory: keeps}))
		kept := register(t, b, 1, fabric.RemoteWrite)
		m := register(t, b, 1, fabric.RemoteWrite)
		before := b.Registered()
		require.Equal(t, !keeps, m.Free())
		wr := fabric.WorkRequest{Op: fabric.Write, Data: []byte("abc"), Signaled: true, RemoteAddr: kept.Addr(), RKey: kept.RKey()}
		post(t, a, wr)
		require.Equal(t, fabric.OK, poll(t, a)[0].Status)
		wr.RemoteAddr, wr.RKey = m.Addr(), m.RKey()
		post(t, a, wr)
		require.Equal(t, want, poll(t, a)[0].Status)
		if keeps {
			require.Equal(t, before, b.Registered())
			require.Equal(t, "abc", string(m.Bytes()[:3]))
		} else {
			require.Equal(t, before-4096, b.Registered())
			require.Equal(t, byte(sim.Poison), m.Bytes()[0])
		}
	}
}

func TestMemoryIsLeftOnlyAfterDisconnect(t *testing.T) {
	a, _ := connect(t, network(t, sim.Link{}))
	m := register(t, a, 1, fabric.LocalWrite)
	require.Error(t, a.Leave(m), "a device may still look at it")
	require.NoError(t, a.Disconnect())
	require.NoError(t, a.Leave(m))
	require.True(t, m.Free())
}
