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
