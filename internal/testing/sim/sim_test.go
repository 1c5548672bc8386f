// What only this fabric promises: the tests over it rely on it, and would find less without.

package sim_test

import (
	"bytes"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

func TestArmAnnouncesOnlyWhatCompletesAfterIt(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		post(t, a, send(1, "before"))
		require.NoError(t, b.Arm())
		done := waiting(b)
		time.Sleep(time.Hour)
		require.Empty(t, done, "who does not poll after Arm sleeps on")
		post(t, a, send(2, "after"))
		require.NoError(t, <-done)
		require.Len(t, poll(t, b), 2)
	})
}

func TestMisuseThatWouldCrashAProcessPanics(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		a, _ := connect(t, n)
		done := waiting(a)
		synctest.Wait()
		assert.PanicsWithValue(t, "sim: Close during Wait", func() { a.Close() })
		assert.PanicsWithValue(t, "sim: two Waits at once", func() { a.Wait() })
		a.Wake()
		require.NoError(t, <-done)
		require.NoError(t, a.Close())
		assert.PanicsWithValue(t, "sim: PostRecv after Close", func() { a.PostRecv(1) })
		assert.PanicsWithValue(t, "sim: Poll after Close", func() { a.Poll(make([]fabric.Completion, 1)) })
	})
}

func TestWhatMayNoLongerBeReadIsPoisoned(t *testing.T) {
	a, b := connect(t, network(t, sim.Link{}))
	post(t, a, send(1, "abc"), send(2, "def"))
	c := poll(t, b)
	require.Equal(t, "abcdef", string(c[0].Data)+string(c[1].Data))
	require.NoError(t, b.PostRecv(1))
	assert.Equal(t, bytes.Repeat([]byte{sim.Poison}, 3), c[1].Data)

	poisoned := bytes.Repeat([]byte{sim.Poison}, 8192)
	kept, freed := register(t, a, 5000, fabric.LocalWrite), register(t, a, 5000, fabric.LocalWrite)
	assert.Zero(t, kept.Addr()%4096)
	require.True(t, freed.Free())
	assert.Equal(t, poisoned, freed.Bytes())
	assert.Equal(t, make([]byte, 8192), kept.Bytes())
	require.NoError(t, a.Close())
	assert.Equal(t, poisoned, kept.Bytes())
}

func TestMemoryIsLeftOnlyAfterDisconnect(t *testing.T) {
	a, _ := connect(t, network(t, sim.Link{}))
	m := register(t, a, 1, fabric.LocalWrite)
	require.Error(t, a.Leave(m), "a device may still look at it")
	require.NoError(t, a.Disconnect())
	require.NoError(t, a.Leave(m))
	require.True(t, m.Free())
}

func TestRegisteredDataIsReadUntilItHasArrived(t *testing.T) {
	virtual(t, sim.Link{Latency: time.Millisecond}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		require.ErrorIs(t, a.PostSend([]fabric.WorkRequest{send(1, strings.Repeat("x", sim.DefaultInline+1))}), syscall.EINVAL, "too long for inline")
		m := register(t, a, 4, fabric.LocalWrite)
		copy(m.Bytes(), "good")
		post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: m.Bytes()[:4], Memory: m})
		copy(m.Bytes(), "evil")
		assert.Equal(t, "evil", string(await(t, b)[0].Data), "a bug in the caller shows")
	})
}

func TestConnectionsShareTheBandwidthOfADirection(t *testing.T) {
	virtual(t, sim.Link{Bandwidth: 1000, Latency: 5 * time.Millisecond}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		c, d := connect(t, n)
		start := time.Now()
		post(t, a, send(0, strings.Repeat("x", 50)))
		post(t, c, send(0, strings.Repeat("x", 50)))
		await(t, b)
		assert.Equal(t, 55*time.Millisecond, time.Since(start))
		await(t, d)
		assert.Equal(t, 105*time.Millisecond, time.Since(start))
		require.Len(t, poll(t, a), 1)
		post(t, b, send(0, strings.Repeat("x", 30)))
		post(t, c, send(0, strings.Repeat("x", 60)))
		await(t, a)
		assert.Equal(t, 140*time.Millisecond, time.Since(start), "the other direction is free")
	})
}

func TestWhatHasLeftArrivesThoughTheSenderIsGone(t *testing.T) {
	virtual(t, sim.Link{Latency: time.Millisecond, Bandwidth: 1000}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		m := register(t, a, 100, fabric.LocalWrite)
		copy(m.Bytes(), "abcdefghij")
		wr := fabric.WorkRequest{Op: fabric.Send, Data: m.Bytes()[:10], Memory: m}
		post(t, a, wr, wr) // 10 ms each on the link
		time.Sleep(15 * time.Millisecond)
		require.NoError(t, a.Disconnect())
		clear(m.Bytes())
		time.Sleep(time.Second)
		_, recvs := split(poll(t, b))
		require.Len(t, recvs, 1)
		assert.Equal(t, "abcdefghij", string(recvs[0].Data))
	})
}
