//go:build linux

// The queue pair: order, slots, errors, and what wakes whom.

package shm

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Data of a Send is a copy, for as long as no receive has been posted.
func TestReceivedDataIsOutOfThePeersReach(t *testing.T) {
	a, b := connected(t, options)
	var want string
	for i := range 64 {
		data := strings.Repeat(string("abcdefghijklmnop"[i%16]), i%25)
		post(t, a, send(0, data))
		want += data
	}
	c := poll(t, b)
	clear(a.peer.buffers)
	var got string
	for i := range c {
		got += string(c[i].Data)
	}
	require.Equal(t, want, got)
}

// Buffers are registered and freed while others are registered, and messages go their way.
func TestRegisterWhileOthersPostAndFree(t *testing.T) {
	a, b := connected(t, options)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 50 {
				if _, err := a.Register(4096, fabric.LocalWrite); err != nil {
					t.Error(err)
				}
			}
		})
	}
	c := make([]fabric.Completion, 8)
	for range 50 {
		m, err := a.Register(100, fabric.LocalWrite)
		require.NoError(t, err)
		require.NoError(t, a.PostSend([]fabric.WorkRequest{{Op: fabric.Send, Data: m.Bytes()[:24], Memory: m, Signaled: true}}))
		_, err = a.Poll(c)
		require.NoError(t, err)
		require.True(t, m.Free())
		n, err := b.Poll(c)
		require.NoError(t, err)
		require.NoError(t, b.PostRecv(n))
	}
	all.Wait()
	require.Len(t, a.memory, 100)
}

// A receive that is posted to a queue pair that has failed completes at once, and wakes Wait as any completion.
func TestReceivesOfAFailedQueuePairWakeWait(t *testing.T) {
	a, _ := connected(t, options)
	a.moveToError()
	for len(poll(t, a)) > 0 {
	}
	require.NoError(t, a.Arm())
	require.NoError(t, a.PostRecv(1))
	require.True(t, a.sock.sleeper.Woken())
	require.NoError(t, a.Wait())
	require.Equal(t, flushed(1), poll(t, a))
}

// A Wait that Wake has ended tells of the peer's end, too: whoever calls Wake may be the last to wait for a while.
func TestWakeHidesNoEnd(t *testing.T) {
	a, b := connected(t, options)
	require.NoError(t, b.Close())
	a.Wake()
	require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
}
