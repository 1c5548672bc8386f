//go:build linux && cgo

package verbs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
)

func post(t testing.TB, e fabric.Endpoint, wr ...fabric.WorkRequest) {
	t.Helper()
	require.NoError(t, e.PostSend(wr))
}

func TestWriteImmPlacesBytesAndSaysSo(t *testing.T) {
	a, b := pair(t)
	const size = 64 << 10
	source := register(t, a, size, fabric.LocalWrite)
	target := register(t, b, size, fabric.RemoteWrite)
	for i := range source.Bytes() {
		source.Bytes()[i] = byte(i*31 + i>>8)
	}
	for i, n := range []int{1, 2, 63, 64, 255, 256, 257, 4095, 4096, 4097, size - 1, size} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			clear(target.Bytes())
			imm := uint32(3<<30 + n&0xffff)
			at := size - n
			post(t, a, fabric.WorkRequest{
				ID: uint64(1000 + i), Op: fabric.WriteImm, Signaled: true, Imm: imm,
				Data: source.Bytes()[:n], Memory: source,
				RemoteAddr: target.Addr() + uint64(at), RKey: target.RKey(),
			})
			assert.Equal(t, fabric.Completion{ID: uint64(1000 + i)}, poll(t, a, 1)[0])
			assert.Equal(t, fabric.Completion{Recv: true, Op: fabric.WriteImm, Imm: imm, Len: n}, poll(t, b, 1)[0])
			assert.Equal(t, source.Bytes()[:n], target.Bytes()[at:])
			assert.Equal(t, make([]byte, at), target.Bytes()[:at])
			require.NoError(t, b.PostRecv(1))
		})
	}
}

func TestInlineDataIsTheCallersAgain(t *testing.T) {
	f, addr := onDevice(t)
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr())
	b := handshake(t, l, a)
	target := register(t, b, 4096, fabric.RemoteWrite)
	size := a.(*endpoint).inlineSize
	t.Log("inline:", size)
	require.Positive(t, size)
	data := pattern(size)
	post(t, a, fabric.WorkRequest{Op: fabric.WriteImm, Data: data, RemoteAddr: target.Addr(), RKey: target.RKey()})
	clear(data)
	assert.Equal(t, size, poll(t, b, 1)[0].Len)
	assert.Equal(t, pattern(size), target.Bytes()[:size])
}

func TestSendDeliversToTheSlotsInTurn(t *testing.T) {
	a, b := pair(t)
	m := register(t, a, 4096, fabric.LocalWrite)
	for i := range 3 * options.RecvQueue {
		want := []byte(fmt.Sprintf("message %d", i))
		wr := fabric.WorkRequest{ID: uint64(i), Op: fabric.Send, Data: want, Signaled: true}
		if i%2 == 1 {
			wr.Memory, wr.Data = m, m.Bytes()[i:i+len(want)]
			copy(wr.Data, want)
		}
		post(t, a, wr)
		assert.Equal(t, uint64(i), poll(t, a, 1)[0].ID)
		c := poll(t, b, 1)[0]
		assert.Equal(t, fabric.Completion{Recv: true, Op: fabric.Send, Len: len(want), Data: want}, c)
		require.NoError(t, b.PostRecv(1))
	}
}

func TestBatchFillsTheQueueAndCompletesOnce(t *testing.T) {
	a, b := pair(t)
	target := register(t, b, 4096, fabric.RemoteWrite)
	for range 4 {
		batch := make([]fabric.WorkRequest, options.SendQueue)
		for i := range batch {
			batch[i] = fabric.WorkRequest{
				ID: uint64(i), Op: fabric.WriteImm, Imm: uint32(i), Signaled: i == len(batch)-1,
				Data: []byte{byte(i)}, RemoteAddr: target.Addr() + uint64(i), RKey: target.RKey(),
			}
		}
		post(t, a, batch...)
		assert.Equal(t, uint64(len(batch)-1), poll(t, a, 1)[0].ID)
		for i, c := range poll(t, b, len(batch)) {
			assert.Equal(t, fabric.Completion{Recv: true, Op: fabric.WriteImm, Imm: uint32(i), Len: 1}, c)
			assert.Equal(t, byte(i), target.Bytes()[i])
		}
		require.NoError(t, b.PostRecv(len(batch)))
		n, err := a.Poll(make([]fabric.Completion, 1))
		require.NoError(t, err)
		assert.Zero(t, n, "the others are not signaled")
	}
}

// The keepalive: it needs no memory and takes no receive of the peer. What the slot of the send
// queue held before does no harm, also on a card that loads it.
func TestEmptyWriteCompletes(t *testing.T) {
	a, b := pair(t)
	source := register(t, a, 4096, fabric.LocalWrite)
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:options.RecvSize], Memory: source, Signaled: true})
	poll(t, a, 1)
	poll(t, b, 1)
	post(t, a, fabric.WorkRequest{ID: 5, Op: fabric.Write, Signaled: true})
	assert.Equal(t, fabric.Completion{ID: 5}, poll(t, a, 1)[0])
	n, err := b.Poll(make([]fabric.Completion, 1))
	require.NoError(t, err)
	assert.Zero(t, n)
}

// What Poll leaves would make no event. A device may report what has arrived after what has been
// sent, so this is for one that is known to have done so.
func TestPollTakesAllThatHasCompleted(t *testing.T) {
	onCardWith(t, "short-polls")
	a, b := pair(t)
	for range 8 {
		for range 8 {
			post(t, a, fabric.WorkRequest{Op: fabric.Send, Signaled: true})
		}
		poll(t, a, 8)
		n, err := b.Poll(make([]fabric.Completion, 64))
		require.NoError(t, err)
		assert.Equal(t, 8, n)
		require.NoError(t, b.PostRecv(8))
	}
}

func TestRemoteWriteNeedsMemoryOfThisConnectionThatAllowsIt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		target func(t *testing.T, b fabric.Endpoint) (addr uint64, rkey uint32)
	}{
		{"an rkey that never was", func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, 4096, fabric.RemoteWrite)
			return m.Addr(), m.RKey() ^ 0x5a5a
		}},
		{"memory for local writes", func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, 4096, fabric.LocalWrite)
			return m.Addr(), m.RKey()
		}},
		{"the ring of another connection", func(t *testing.T, _ fabric.Endpoint) (uint64, uint32) {
			_, other := pair(t)
			m := register(t, other, 4096, fabric.RemoteWrite)
			return m.Addr(), m.RKey()
		}},
		{"beyond the end", func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, 4096, fabric.RemoteWrite)
			return m.Addr() + 4093, m.RKey()
		}},
		{"memory that was given back", func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, 4096, fabric.RemoteWrite)
			addr, rkey := m.Addr(), m.RKey()
			require.True(t, m.Free())
			return addr, rkey
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t)
			addr, rkey := tt.target(t, b)
			post(t, a, fabric.WorkRequest{ID: 7, Op: fabric.WriteImm, Signaled: true, Data: []byte("evil"), RemoteAddr: addr, RKey: rkey})
			c := poll(t, a, 1)[0]
			assert.Equal(t, fabric.RemoteAccess, c.Status)
			assert.Equal(t, uint64(7), c.ID)
			assert.False(t, c.Recv)
		})
	}
}

// noReceives is the number of sends that found no receive posted, as the device counts
// them.
func noReceives(t testing.TB) (n int) {
	t.Helper()
	files, err := filepath.Glob("/sys/class/infiniband/*/ports/*/hw_counters/*rnr*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		count, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		n += count
	}
	return n
}

// A send that finds no receive is counted by the device, does not end the
// connection, and is tried again.
func TestSendWithoutAReceiveWaitsForOne(t *testing.T) {
	a, b := pair(t)
	for i := range options.RecvQueue {
		post(t, a, fabric.WorkRequest{ID: uint64(i), Op: fabric.Send, Signaled: true})
		require.Equal(t, fabric.OK, poll(t, a, 1)[0].Status, "send %d", i)
	}
	before := noReceives(t)
	post(t, a, fabric.WorkRequest{ID: 99, Op: fabric.Send, Signaled: true})
	hang.Unless(t, func() bool { return noReceives(t) > before }, "the device counts nothing")
	n, err := a.Poll(make([]fabric.Completion, 1))
	require.NoError(t, err)
	assert.Zero(t, n, "neither sent nor failed")

	poll(t, b, options.RecvQueue)
	require.NoError(t, b.PostRecv(1))
	assert.Equal(t, fabric.Completion{ID: 99}, poll(t, a, 1)[0])
}

func TestPostSendRefusesNonsense(t *testing.T) {
	a, _ := pair(t)
	m := register(t, a, 4096, fabric.LocalWrite)
	for _, tt := range []struct {
		name string
		wr   []fabric.WorkRequest
		want syscall.Errno
	}{
		{"too many", make([]fabric.WorkRequest, options.SendQueue+1), syscall.ENOMEM},
		{"too long to be inline", []fabric.WorkRequest{{Data: make([]byte, maxInline+1)}}, syscall.EMSGSIZE},
		{"data elsewhere", []fabric.WorkRequest{{Data: make([]byte, 1), Memory: m}}, syscall.EFAULT},
		{"the ID of a receive", []fabric.WorkRequest{{ID: recvBit}}, syscall.EINVAL},
		{"no opcode", []fabric.WorkRequest{{Op: 9}}, syscall.EINVAL},
		{"no memory of ours", []fabric.WorkRequest{{Data: m.Bytes()[:1], Memory: struct{ fabric.Memory }{m}}}, syscall.EINVAL},
	} {
		assert.ErrorIs(t, a.PostSend(tt.wr), tt.want, tt.name)
	}
	assert.ErrorIs(t, a.PostRecv(options.RecvQueue+1), syscall.ENOMEM)
	post(t, a) // none at all is fine
}

func TestDisconnectFlushesEverything(t *testing.T) {
	a, b := pair(t)
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: []byte("last"), Signaled: true})
	assert.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
	assert.Equal(t, []byte("last"), poll(t, b, 1)[0].Data)

	require.NoError(t, a.Disconnect())
	for _, c := range poll(t, a, options.RecvQueue) {
		assert.True(t, c.Recv)
		assert.Equal(t, fabric.Flushed, c.Status)
	}
	require.ErrorIs(t, within(t, waited(b)), fabric.ErrDisconnected)
	require.NoError(t, b.Disconnect())
	for _, c := range poll(t, b, options.RecvQueue-1) {
		assert.True(t, c.Recv)
		assert.Equal(t, fabric.Flushed, c.Status)
	}
	require.ErrorIs(t, waitForChange(t, a), fabric.ErrDisconnected)
	require.NoError(t, a.Disconnect())

	post(t, a, fabric.WorkRequest{ID: 9, Op: fabric.Send})
	c := poll(t, a, 1)[0]
	assert.Equal(t, fabric.Flushed, c.Status)
	assert.Equal(t, uint64(9), c.ID)
	assert.False(t, c.Recv)
}

func TestPostingAndPollingAllocateNothing(t *testing.T) {
	a, b := pair(t)
	target := register(t, b, 4096, fabric.RemoteWrite)
	source := register(t, a, 4096, fabric.LocalWrite)
	small := make([]byte, 16)
	wr := []fabric.WorkRequest{
		{Op: fabric.WriteImm, Data: small, RemoteAddr: target.Addr(), RKey: target.RKey()},
		{Op: fabric.WriteImm, Data: source.Bytes(), Memory: source, RemoteAddr: target.Addr(), RKey: target.RKey()},
		{Op: fabric.Send, Data: small, Signaled: true},
	}
	c := make([]fabric.Completion, 8)
	drain := func(e fabric.Endpoint, n int) {
		for n > 0 {
			k, err := e.Poll(c)
			if err != nil || k > 0 && c[0].Status != fabric.OK {
				t.Error(err, c[0].Status)
				return
			}
			n -= k
		}
	}
	assert.Zero(t, testing.AllocsPerRun(50, func() {
		if b.Arm() != nil || a.PostSend(wr) != nil {
			t.Error("arm or post")
		}
		drain(a, 1)
		drain(b, 3)
		if b.PostRecv(3) != nil {
			t.Error("post receives")
		}
		if b.Wait() != nil {
			t.Error("wait")
		}
	}))
}
