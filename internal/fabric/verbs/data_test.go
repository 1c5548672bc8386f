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
			imm := uint32(0xfedc0000 + n)
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

// The keepalive: it needs no memory and takes no receive of the peer.
func TestEmptyWriteCompletes(t *testing.T) {
	a, b := pair(t)
	post(t, a, fabric.WorkRequest{ID: 5, Op: fabric.Write, Signaled: true})
	assert.Equal(t, fabric.Completion{ID: 5}, poll(t, a, 1)[0])
	n, err := b.Poll(make([]fabric.Completion, 1))
	require.NoError(t, err)
	assert.Zero(t, n)
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
			want := fabric.RemoteAccess
			if overIWARP(a) { // the peer's device ends the connection
				for c.Recv {
					c = poll(t, a, 1)[0]
				}
				want = fabric.Flushed
			}
			assert.Equal(t, want, c.Status)
			assert.Equal(t, uint64(7), c.ID)
			assert.False(t, c.Recv)
		})
	}
}

// noReceives is the number of sends that found no receive posted, as the device counts
// them. tools/hwcounters, which asks by netlink, is not for this module's dependencies.
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
	if overIWARP(a) {
		t.Skip("over iWARP it ends the connection")
	}
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

// A link registers memory for more connections while those that it has are busy, and others
// free theirs, and gives all of it back in the end.
func TestRegisterWhileOthersPostAndPoll(t *testing.T) {
	a, b := pair(t)
	const writes, rings = 500, 50
	target := register(t, b, 4096, fabric.RemoteWrite)
	source := register(t, a, 4096, fabric.LocalWrite)
	copy(source.Bytes(), pattern(4096))
	slots := make(chan struct{}, options.SendQueue)
	posted := make(chan error, 1)
	go func() {
		wr := []fabric.WorkRequest{{
			Op: fabric.Write, Signaled: true,
			Data: source.Bytes(), Memory: source, RemoteAddr: target.Addr(), RKey: target.RKey(),
		}}
		for range writes {
			slots <- struct{}{}
			if err := a.PostSend(wr); err != nil {
				posted <- err
				return
			}
		}
		posted <- nil
	}()

	var registered []fabric.Memory
	made := make(chan error, 1)
	go func() {
		for range rings {
			m, err := a.Register(64<<10, fabric.RemoteWrite)
			if err != nil {
				made <- err
				return
			}
			registered = append(registered, m)
		}
		made <- nil
	}()
	for n := range writes {
		if n%(writes/rings) == 0 {
			require.True(t, register(t, a, 4096, fabric.LocalWrite).Free())
		}
		require.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
		<-slots
	}
	require.NoError(t, within(t, posted))
	require.NoError(t, within(t, made))
	assert.Equal(t, pattern(4096), target.Bytes())

	var addrs []uint64
	for _, m := range registered {
		addrs = append(addrs, m.Addr())
		post(t, b, fabric.WorkRequest{Op: fabric.Write, Signaled: true, Data: pattern(64), RemoteAddr: m.Addr(), RKey: m.RKey()})
		require.Equal(t, fabric.OK, poll(t, b, 1)[0].Status)
		assert.Equal(t, pattern(64), m.Bytes()[:64])
	}
	require.NoError(t, a.Close())
	for _, addr := range addrs {
		assert.False(t, registeredAt(t, addr), "%#x", addr)
	}
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
	if overIWARP(a) {
		return // siw flushes nothing that is posted later
	}

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

func BenchmarkEmptyPoll(b *testing.B) {
	e, _ := pair(b)
	c := make([]fabric.Completion, 16)
	for b.Loop() {
		if n, err := e.Poll(c); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkPostSend(b *testing.B) {
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, peer := pair(b)
			target := register(b, peer, 4096, fabric.RemoteWrite)
			wr := make([]fabric.WorkRequest, n)
			for i := range wr {
				wr[i] = fabric.WorkRequest{Op: fabric.Write, Data: make([]byte, 8), RemoteAddr: target.Addr(), RKey: target.RKey()}
			}
			wr[n-1].Signaled = true
			c := make([]fabric.Completion, 1)
			for b.Loop() {
				if err := e.PostSend(wr); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				for k := 0; k == 0; k, _ = e.Poll(c) {
				}
				b.StartTimer()
			}
		})
	}
}

func BenchmarkPingPong(b *testing.B) {
	x, y := pair(b)
	wr := []fabric.WorkRequest{{Op: fabric.Send, Data: make([]byte, 64), Signaled: true}}
	stop := make(chan struct{})
	done := make(chan struct{})
	turn := func(e fabric.Endpoint, c []fabric.Completion, stop chan struct{}) bool {
		for {
			n, _ := e.Poll(c)
			for _, c := range c[:n] {
				if c.Recv {
					e.PostRecv(1)
					return true
				}
			}
			select {
			case <-stop:
				return false
			default:
			}
		}
	}
	go func() {
		defer close(done)
		c := make([]fabric.Completion, 1)
		for turn(y, c, stop) {
			y.PostSend(wr)
		}
	}()
	c := make([]fabric.Completion, 1)
	for b.Loop() {
		if err := x.PostSend(wr); err != nil {
			b.Fatal(err)
		}
		turn(x, c, nil)
	}
	close(stop)
	<-done
}
