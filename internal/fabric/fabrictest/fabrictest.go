// Package fabrictest has the contract of [fabric.Endpoint], [fabric.Memory] and
// [fabric.Mover] as tests for all fabrics. What one fabric alone promises, or can be made to
// do, is in the tests of its package.
package fabrictest

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
)

// Options are those of the connections that Pair makes.
var Options = fabric.Options{
	SendQueue:    16,
	RecvQueue:    32,
	RecvSize:     64,
	Sends:        32,
	RemoteMemory: 256 << 10,
	AckTimeout:   500 * time.Millisecond,
	Retries:      7,
}

// Pair returns the two ends of a connection, with Options and all receives posted, which the
// test closes in the end.
type Pair func(t testing.TB) (a, b fabric.Endpoint)

// Test tests the contract.
func Test(t *testing.T, pair Pair) {
	t.Run("WriteImmPlacesBytesAndSaysSo", func(t *testing.T) { testWriteImm(t, pair) })
	t.Run("SendDeliversToTheReceivesInTurn", func(t *testing.T) { testSend(t, pair) })
	t.Run("BatchFillsTheQueueAndCompletesOnce", func(t *testing.T) { testBatch(t, pair) })
	t.Run("EmptyWriteCompletes", func(t *testing.T) { testEmptyWrite(t, pair) })
	t.Run("RemoteWriteNeedsMemoryOfThisConnectionThatAllowsIt", func(t *testing.T) { testRemoteAccess(t, pair) })
	t.Run("MemoryOutlivesItsEndpoint", func(t *testing.T) { testMover(t, pair) })
	t.Run("DisconnectFlushesEverything", func(t *testing.T) { testDisconnect(t, pair) })
	t.Run("PostingAndPollingAllocateNothing", func(t *testing.T) { testAllocations(t, pair) })
	t.Run("WakeIsNeverLost", func(t *testing.T) { testWake(t, pair) })
	t.Run("WakeAfterClose", func(t *testing.T) { testWakeAfterClose(t, pair) })
}

func register(t testing.TB, e fabric.Endpoint, n int, a fabric.Access) fabric.Memory {
	t.Helper()
	m, err := e.Register(n, a)
	require.NoError(t, err)
	return m
}

// target registers n bytes of the peer's memory that a may write to.
func target(t testing.TB, a, peer fabric.Endpoint, n int) fabric.Memory {
	t.Helper()
	m := register(t, peer, n, fabric.RemoteWrite)
	require.NoError(t, a.Reach(m.Addr(), m.RKey(), n))
	return m
}

func post(t testing.TB, e fabric.Endpoint, wr ...fabric.WorkRequest) {
	t.Helper()
	require.NoError(t, e.PostSend(wr))
}

// poll returns the next n completions.
func poll(t testing.TB, e fabric.Endpoint, n int) []fabric.Completion {
	t.Helper()
	all := make([]fabric.Completion, n)
	deadline := time.Now().Add(hang.After)
	for got := 0; got < n; {
		k, err := e.Poll(all[got:])
		require.NoError(t, err)
		got += k
		if k == 0 {
			require.True(t, time.Now().Before(deadline), "%d of %d completions", got, n)
			runtime.Gosched()
		}
	}
	return all
}

// none requires that there is no completion.
func none(t testing.TB, e fabric.Endpoint, why string) {
	t.Helper()
	n, err := e.Poll(make([]fabric.Completion, 1))
	require.NoError(t, err)
	assert.Zero(t, n, why)
}

// change returns the change of the connection that Wait returns.
func change(t testing.TB, e fabric.Endpoint) error {
	t.Helper()
	changed := make(chan error, 1)
	go func() {
		for {
			if err := e.Wait(); err != nil {
				changed <- err
				return
			}
		}
	}()
	select {
	case err := <-changed:
		return err
	case <-time.After(hang.After):
		require.FailNow(t, "no change")
		return nil
	}
}

func testWriteImm(t *testing.T, pair Pair) {
	a, b := pair(t)
	const size = 64 << 10
	source, target := register(t, a, size, fabric.LocalWrite), target(t, a, b, size)
	for i := range source.Bytes() {
		source.Bytes()[i] = byte(i*31 + i>>8)
	}
	for i, n := range []int{1, 2, 63, 64, 255, 256, 257, 4095, 4096, 4097, size - 1, size} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			clear(target.Bytes())
			imm := 3<<30 + uint32(n)&0xffff
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

func testSend(t *testing.T, pair Pair) {
	a, b := pair(t)
	m := register(t, a, 4096, fabric.LocalWrite)
	for i := range 3 * Options.RecvQueue {
		want := fmt.Appendf(nil, "message %d", i)
		wr := fabric.WorkRequest{ID: uint64(i), Op: fabric.Send, Data: want, Signaled: true}
		if i%2 == 1 {
			wr.Memory, wr.Data = m, m.Bytes()[i:i+len(want)]
			copy(wr.Data, want)
		}
		post(t, a, wr)
		assert.Equal(t, uint64(i), poll(t, a, 1)[0].ID)
		assert.Equal(t, fabric.Completion{Recv: true, Op: fabric.Send, Len: len(want), Data: want}, poll(t, b, 1)[0])
		require.NoError(t, b.PostRecv(1))
	}
}

func testBatch(t *testing.T, pair Pair) {
	a, b := pair(t)
	target := target(t, a, b, 4096)
	for range 4 {
		batch := make([]fabric.WorkRequest, Options.SendQueue)
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
		none(t, a, "the others are not signaled")
	}
}

// A keepalive probe needs no memory and takes no receive of the peer. What the slot of the
// send queue held before does no harm, also on a card that loads it.
func testEmptyWrite(t *testing.T, pair Pair) {
	a, b := pair(t)
	source := register(t, a, 4096, fabric.LocalWrite)
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:Options.RecvSize], Memory: source, Signaled: true})
	poll(t, a, 1)
	poll(t, b, 1)
	post(t, a, fabric.WorkRequest{ID: 5, Op: fabric.Write, Signaled: true})
	assert.Equal(t, fabric.Completion{ID: 5}, poll(t, a, 1)[0])
	none(t, b, "a probe takes no receive")
}

func testRemoteAccess(t *testing.T, pair Pair) {
	const size = 4096
	for name, victim := range map[string]func(t *testing.T, b fabric.Endpoint) (addr uint64, rkey uint32){
		"an rkey that never was": func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, size, fabric.RemoteWrite)
			return m.Addr(), m.RKey() ^ 0x5a5a
		},
		"memory for local writes": func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, size, fabric.LocalWrite)
			return m.Addr(), m.RKey()
		},
		"memory of another connection": func(t *testing.T, _ fabric.Endpoint) (uint64, uint32) {
			_, other := pair(t)
			m := register(t, other, size, fabric.RemoteWrite)
			return m.Addr(), m.RKey()
		},
		"beyond the end": func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, Options.RemoteMemory, fabric.RemoteWrite)
			return m.Addr() + uint64(Options.RemoteMemory) - 3, m.RKey()
		},
		"memory that was given back": func(t *testing.T, b fabric.Endpoint) (uint64, uint32) {
			m := register(t, b, size, fabric.RemoteWrite)
			addr, rkey := m.Addr(), m.RKey()
			if !m.Free() {
				t.Skip("this fabric frees no memory that the peer may write to")
			}
			return addr, rkey
		},
	} {
		for _, op := range []fabric.Opcode{fabric.Write, fabric.WriteImm} {
			t.Run(name, func(t *testing.T) {
				a, b := pair(t)
				addr, rkey := victim(t, b)
				post(t, a, fabric.WorkRequest{ID: 7, Op: op, Data: []byte("evil"), RemoteAddr: addr, RKey: rkey})
				c := poll(t, a, 1)[0]
				assert.Equal(t, fabric.RemoteAccess, c.Status)
				assert.Equal(t, uint64(7), c.ID)
				assert.False(t, c.Recv)
			})
		}
	}
}

// place writes what from holds to the peer's memory, and returns how that ended.
func place(t *testing.T, a fabric.Endpoint, from fabric.Memory, addr uint64, rkey uint32) fabric.Status {
	t.Helper()
	post(t, a, fabric.WorkRequest{Op: fabric.Write, Data: from.Bytes(), Memory: from, Signaled: true, RemoteAddr: addr, RKey: rkey})
	return poll(t, a, 1)[0].Status
}

func testMover(t *testing.T, pair Pair) {
	move := func() (a, b fabric.Mover) {
		x, y := pair(t)
		a, ok := x.(fabric.Mover)
		if !ok {
			t.Skip("this fabric's endpoints do not lose peers that live")
		}
		return a, y.(fabric.Mover)
	}
	a, b := move()
	from, to := register(t, a, 4096, fabric.LocalWrite), register(t, b, 4096, fabric.RemoteWrite)
	dropped := register(t, b, 4096, fabric.RemoteWrite)
	addr, before := to.Addr(), to.RKey()
	copy(from.Bytes(), "first")
	require.Equal(t, fabric.OK, place(t, a, from, addr, before))
	require.NoError(t, a.Disconnect())
	require.NoError(t, b.Disconnect())
	require.Error(t, a.Leave(to), "it is b's")
	require.NoError(t, a.Leave(from))
	for _, m := range []fabric.Memory{to, dropped} {
		require.NoError(t, b.Leave(m))
	}
	assert.True(t, dropped.Free())
	assert.Equal(t, "first", string(to.Bytes()[:5]))

	c, d := move()
	require.NoError(t, c.Adopt(from))
	require.NoError(t, d.Adopt(to))
	require.Error(t, c.Adopt(to), "it is d's")
	assert.Equal(t, addr, to.Addr())
	assert.NotEqual(t, before, to.RKey())
	copy(from.Bytes(), "second")
	require.Equal(t, fabric.OK, place(t, c, from, addr, to.RKey()))
	assert.Equal(t, "second", string(to.Bytes()[:6]))
	assert.Equal(t, fabric.RemoteAccess, place(t, c, from, addr, before), "the old key")
}

func testDisconnect(t *testing.T, pair Pair) {
	a, b := pair(t)
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: []byte("last"), Signaled: true})
	assert.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
	assert.Equal(t, []byte("last"), poll(t, b, 1)[0].Data)

	flushes := func(e fabric.Endpoint, n int) {
		t.Helper()
		for _, c := range poll(t, e, n) {
			assert.True(t, c.Recv)
			assert.Equal(t, fabric.Flushed, c.Status)
		}
	}
	require.NoError(t, a.Disconnect())
	flushes(a, Options.RecvQueue)
	require.ErrorIs(t, change(t, b), fabric.ErrDisconnected)
	require.NoError(t, b.Disconnect())
	flushes(b, Options.RecvQueue-1)
	require.ErrorIs(t, change(t, a), fabric.ErrDisconnected)
	require.NoError(t, a.Disconnect())

	post(t, a, fabric.WorkRequest{ID: 9, Op: fabric.WriteImm})
	c := poll(t, a, 1)[0]
	assert.Equal(t, fabric.Flushed, c.Status)
	assert.Equal(t, uint64(9), c.ID)
	assert.False(t, c.Recv)
}

func testAllocations(t *testing.T, pair Pair) {
	a, b := pair(t)
	source, target := register(t, a, 4096, fabric.LocalWrite), target(t, a, b, 4096)
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

func testWake(t *testing.T, pair Pair) {
	a, _ := pair(t)
	const n = 2000
	changes := make(chan int, n)
	go func() {
		for i := range n {
			changes <- i
			a.Wake()
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for seen := 0; seen < n; {
			if !assert.NoError(t, a.Wait()) {
				return
			}
			for len(changes) > 0 {
				<-changes
				seen++
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(hang.After):
		require.FailNow(t, "Wait sleeps on")
	}
}

func testWakeAfterClose(t *testing.T, pair Pair) {
	a, _ := pair(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				a.Wake()
			}
		}
	}()
	require.NoError(t, a.Close())
	close(stop)
	<-done
	a.Wake()
}
