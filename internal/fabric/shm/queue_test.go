//go:build linux

// The queue pair: order, slots, errors, and what wakes whom.

package shm

import (
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

func TestEveryLapOfTheQueue(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 64, 267} {
		o := options
		o.RecvQueue = depth
		a, b := connected(t, o)
		for i := range uint32(4*depth + 3) {
			wr := a.write(b, 0, i, "x")
			wr.Signaled = true
			post(t, a, wr)
			require.Len(t, poll(t, a), 1)
			require.Equal(t, []fabric.Completion{received(i, 1)}, poll(t, b))
			require.Empty(t, poll(t, b))
			require.NoError(t, b.PostRecv(1))
		}
	}
}

func TestMessageWithoutAReceiveIsAnError(t *testing.T) {
	a, b := connected(t, options)
	for i := range uint32(64) {
		post(t, a, a.write(b, 0, i, ""))
	}
	post(t, a, fabric.WorkRequest{Op: fabric.Write, Signaled: true}) // a probe takes none
	require.Len(t, poll(t, a), 1)
	post(t, a, fabric.WorkRequest{ID: 9, Op: fabric.WriteImm}, fabric.WorkRequest{ID: 10, Op: fabric.WriteImm})
	require.Equal(t, append([]fabric.Completion{
		{ID: 9, Status: fabric.RNRRetryExceeded}, {ID: 10, Status: fabric.Flushed}}, flushed(64)...), poll(t, a))
	require.Len(t, poll(t, b), 64, "what had arrived")
	require.NoError(t, a.PostRecv(2))
	require.Equal(t, flushed(2), poll(t, a))
}

func TestRemoteAccessErrors(t *testing.T) {
	for name, change := range map[string]func(wr *fabric.WorkRequest){
		"key":         func(wr *fabric.WorkRequest) { wr.RKey++ },
		"past end":    func(wr *fabric.WorkRequest) { wr.RemoteAddr = ringSize - 2 },
		"far away":    func(wr *fabric.WorkRequest) { wr.RemoteAddr = 1 << 63 },
		"wraps":       func(wr *fabric.WorkRequest) { wr.RemoteAddr = ^uint64(0) },
		"larger":      func(wr *fabric.WorkRequest) { wr.Data = make([]byte, ringSize+1) },
		"plain write": func(wr *fabric.WorkRequest) { wr.Op, wr.RemoteAddr = fabric.Write, ringSize },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, options)
			wr := a.write(b, 0, 0, "abc")
			change(&wr)
			post(t, a, wr)
			require.Equal(t, append([]fabric.Completion{{Status: fabric.RemoteAccess}}, flushed(64)...), poll(t, a))
			require.Empty(t, poll(t, b))
			require.Equal(t, make([]byte, ringSize), b.mem.Bytes())
		})
	}
}

func TestMessageLongerThanItsReceiveIsAnError(t *testing.T) {
	a, b := connected(t, options)
	post(t, a, send(1, strings.Repeat("x", options.RecvSize)), send(2, strings.Repeat("x", options.RecvSize+1)))
	c := poll(t, a)
	require.Equal(t, []fabric.Completion{{ID: 1}, {ID: 2, Status: fabric.RemoteInvalidRequest}}, c[:2])
	require.Len(t, poll(t, b), 1)
}

func TestDataOutsideItsMemoryIsALocalProtectionError(t *testing.T) {
	for name, of := range map[string]func(a, b end) end{
		"not in it":           func(a, _ end) end { return a },
		"of another endpoint": func(_, b end) end { return b },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, options)
			m, err := of(a, b).Register(1, fabric.LocalWrite)
			require.NoError(t, err)
			require.Len(t, m.Bytes(), pages(1))
			wr := send(9, "x")
			wr.Memory = m
			if name != "not in it" {
				wr.Data = m.Bytes()
			}
			post(t, a, wr)
			require.Equal(t, fabric.Completion{ID: 9, Status: fabric.LocalProtection}, poll(t, a)[0])
		})
	}
}

func TestSlotIsFreedByPollingItsCompletionOrALaterOne(t *testing.T) {
	o := options
	o.SendQueue = 16
	a, b := connected(t, o)
	for i := range uint64(16) {
		wr := send(i, "x")
		wr.Signaled = i == 7
		post(t, a, wr)
	}
	require.ErrorIs(t, a.PostSend([]fabric.WorkRequest{send(16, "x")}), syscall.ENOMEM, "all have ended, but none was polled")
	require.Equal(t, []fabric.Completion{{ID: 7}}, poll(t, a))
	nine := make([]fabric.WorkRequest, 9)
	for i := range nine {
		nine[i] = send(uint64(16+i), "x")
	}
	require.ErrorIs(t, a.PostSend(nine), syscall.ENOMEM, "slots 0 to 7 are free, no more")
	require.Len(t, poll(t, b), 16, "none of nine was posted")
	post(t, a, nine[:8]...)
	require.Len(t, poll(t, b), 8)
}

func TestReceiveQueueOverflowIsAnErrorUntilCompletionsArePolled(t *testing.T) {
	a, b := connected(t, options)
	post(t, a, send(1, "x"))
	require.ErrorIs(t, b.PostRecv(1), syscall.ENOMEM)
	require.Len(t, poll(t, b), 1)
	require.ErrorIs(t, b.PostRecv(2), syscall.ENOMEM)
	require.NoError(t, b.PostRecv(1))
}

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

func TestDisconnectFlushesBehindWhatHadArrived(t *testing.T) {
	leavesNothing(t)
	a, b := connected(t, options)
	post(t, a, a.write(b, 0, 1, "one"), send(2, "two"))
	require.NoError(t, a.Disconnect())
	require.NoError(t, a.Close(), "the sender is gone")
	soon(t, "Wait", func() { assert.ErrorIs(t, b.Wait(), fabric.ErrDisconnected) })
	require.NoError(t, b.Disconnect())
	c := poll(t, b)
	require.Equal(t, received(1, 3), c[0])
	require.Equal(t, "two", string(c[1].Data))
	require.Equal(t, flushed(62), c[2:])
	require.Equal(t, "one", string(b.mem.Bytes()[:3]))
	post(t, b, fabric.WorkRequest{ID: 5, Op: fabric.WriteImm})
	require.Equal(t, []fabric.Completion{{ID: 5, Status: fabric.Flushed}}, poll(t, b))
	require.NoError(t, b.Disconnect())
	require.Empty(t, poll(t, b))
	b.Wake()
	soon(t, "Wait", func() { assert.NoError(t, b.Wait(), "it has been told once") })
}

func TestDisconnectIsAnsweredAtOnce(t *testing.T) {
	a, _ := connected(t, options)
	require.NoError(t, a.Disconnect())
	soon(t, "Wait", func() { assert.ErrorIs(t, a.Wait(), fabric.ErrDisconnected) })
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

// Memory that the peer may write to stays as long as the endpoints do.
func TestMemoryIsFreedUnlessItIsShared(t *testing.T) {
	a, b := connected(t, options)
	own, err := a.Register(1<<20, fabric.LocalWrite)
	require.NoError(t, err)
	require.True(t, own.Free())
	require.Empty(t, own.Bytes())
	require.False(t, b.mem.Free())
	post(t, a, a.write(b, 0, 1, "still there"))
	require.Equal(t, "still there", string(b.mem.Bytes()[:11]))
	require.NoError(t, a.Close())
}
