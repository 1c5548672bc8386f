// Package fabrictest has the contract of [fabric.Endpoint], [fabric.Memory] and
// [fabric.Mover] as tests for all fabrics. What one fabric alone promises, or can be made to
// do, is in the tests of its package.
package fabrictest

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
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
	t.Run("WaitIsForTheArmedEvent", func(t *testing.T) { testArm(t, pair) })
	t.Run("WakeAfterClose", func(t *testing.T) { testWakeAfterClose(t, pair) })
}

// Strict tests what fabrics promise that are no devices: these free a slot of the send queue early
// now and then, retry for ever, or tell of an error in other words.
func Strict(t *testing.T, pair Pair) {
	t.Run("SlotIsFreedByPollingItsCompletionOrALaterOne", func(t *testing.T) { testSlots(t, pair) })
	t.Run("ReceiveQueueOverflowIsAnErrorUntilCompletionsArePolled", func(t *testing.T) { testReceives(t, pair) })
	t.Run("MessageWithoutAReceiveIsAnError", func(t *testing.T) { testWithoutReceive(t, pair) })
	t.Run("MessageLongerThanItsReceiveIsAnError", func(t *testing.T) { testTooLong(t, pair) })
	t.Run("DataOutsideItsMemoryIsALocalProtectionError", func(t *testing.T) { testLocalProtection(t, pair) })
}

// Register registers memory.
func Register(t testing.TB, e fabric.Endpoint, n int, a fabric.Access) fabric.Memory {
	t.Helper()
	m, err := e.Register(n, a)
	require.NoError(t, err)
	return m
}

// target registers n bytes of the peer's memory that a may write to.
func target(t testing.TB, a, peer fabric.Endpoint, n int) fabric.Memory {
	t.Helper()
	m := Register(t, peer, n, fabric.RemoteWrite)
	require.NoError(t, a.Reach(t.Context(), m.Addr(), m.RKey(), n))
	return m
}

// Post posts work requests.
func Post(t testing.TB, e fabric.Endpoint, wr ...fabric.WorkRequest) {
	t.Helper()
	require.NoError(t, e.PostSend(wr))
	if e.RingDue() {
		e.Ring()
	}
}

// Poll returns the next n completions.
func Poll(t testing.TB, e fabric.Endpoint, n int) []fabric.Completion {
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

// Flushed is what n flushed receives complete with.
func Flushed(n int) []fabric.Completion {
	c := make([]fabric.Completion, n)
	for i := range c {
		c[i] = fabric.Completion{Recv: true, Status: fabric.Flushed}
	}
	return c
}

// none requires that there is no completion.
func none(t testing.TB, e fabric.Endpoint, why string) {
	t.Helper()
	n, err := e.Poll(make([]fabric.Completion, 1))
	require.NoError(t, err)
	assert.Zero(t, n, why)
}

// Waiting calls Wait.
func Waiting(e fabric.Endpoint) <-chan error {
	done := make(chan error, 1)
	go func() { done <- e.Wait() }()
	return done
}

// Asleep requires that a call, of Wait for example, does not return now.
func Asleep(t testing.TB, done <-chan error, why ...string) {
	t.Helper()
	select {
	case err := <-done:
		require.FailNow(t, "it returned", "%v %s", err, why)
	case <-time.After(20 * time.Millisecond):
	}
}

func woken(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(hang.After):
		require.FailNow(t, "Wait sleeps on")
		return nil
	}
}

// change returns the change of the connection that Wait returns.
func change(t testing.TB, e fabric.Endpoint) error {
	t.Helper()
	for {
		if err := woken(t, Waiting(e)); err != nil {
			return err
		}
	}
}

func testWriteImm(t *testing.T, pair Pair) {
	a, b := pair(t)
	const size = 64 << 10
	source, target := Register(t, a, size, fabric.LocalWrite), target(t, a, b, size)
	for i := range source.Bytes() {
		source.Bytes()[i] = byte(i*31 + i>>8)
	}
	for i, n := range []int{1, 2, 63, 64, 255, 256, 257, 4095, 4096, 4097, size - 1, size} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			clear(target.Bytes())
			imm := 3<<30 + uint32(n)&0xffff
			at := size - n
			Post(t, a, fabric.WorkRequest{
				ID: uint64(1000 + i), Op: fabric.WriteImm, Signaled: true, Imm: imm,
				Data: source.Bytes()[:n], Memory: source,
				RemoteAddr: target.Addr() + uint64(at), RKey: target.RKey(),
			})
			assert.Equal(t, fabric.Completion{ID: uint64(1000 + i)}, Poll(t, a, 1)[0])
			assert.Equal(t, fabric.Completion{Recv: true, Op: fabric.WriteImm, Imm: imm, Len: n}, Poll(t, b, 1)[0])
			assert.Equal(t, source.Bytes()[:n], target.Bytes()[at:])
			assert.Equal(t, make([]byte, at), target.Bytes()[:at])
			require.NoError(t, b.PostRecv(1))
		})
	}
}

func testSend(t *testing.T, pair Pair) {
	a, b := pair(t)
	m := Register(t, a, 4096, fabric.LocalWrite)
	for i := range 3 * Options.RecvQueue {
		want := fmt.Appendf(nil, "message %d", i)
		inline := bytes.Clone(want)
		wr := fabric.WorkRequest{ID: uint64(i), Op: fabric.Send, Data: inline, Signaled: true}
		if i%2 == 1 {
			wr.Memory, wr.Data = m, m.Bytes()[i:i+len(want)]
			copy(wr.Data, want)
		}
		Post(t, a, wr)
		clear(inline) // it is the caller's again
		assert.Equal(t, uint64(i), Poll(t, a, 1)[0].ID)
		assert.Equal(t, fabric.Completion{Recv: true, Op: fabric.Send, Len: len(want), Data: want}, Poll(t, b, 1)[0])
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
		Post(t, a, batch...)
		assert.Equal(t, uint64(len(batch)-1), Poll(t, a, 1)[0].ID)
		for i, c := range Poll(t, b, len(batch)) {
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
	source := Register(t, a, 4096, fabric.LocalWrite)
	Post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:Options.RecvSize], Memory: source, Signaled: true})
	Poll(t, a, 1)
	Poll(t, b, 1)
	for _, id := range []uint64{5, fabric.MaxID} {
		Post(t, a, fabric.WorkRequest{ID: id, Op: fabric.Write, Signaled: true})
		assert.Equal(t, fabric.Completion{ID: id}, Poll(t, a, 1)[0])
	}
	none(t, b, "a probe takes no receive")
}

func testRemoteAccess(t *testing.T, pair Pair) {
	const size = 4096
	own := func(access fabric.Access) func(t *testing.T, b fabric.Endpoint) fabric.Memory {
		return func(t *testing.T, b fabric.Endpoint) fabric.Memory { return Register(t, b, size, access) }
	}
	for name, c := range map[string]struct {
		victim func(t *testing.T, b fabric.Endpoint) fabric.Memory
		change func(wr *fabric.WorkRequest)
	}{
		"an rkey that never was":  {own(fabric.RemoteWrite), func(wr *fabric.WorkRequest) { wr.RKey ^= 0x5a5a }},
		"memory for local writes": {own(fabric.LocalWrite), func(*fabric.WorkRequest) {}},
		"memory of another connection": {func(t *testing.T, _ fabric.Endpoint) fabric.Memory {
			_, other := pair(t)
			return Register(t, other, size, fabric.RemoteWrite)
		}, func(*fabric.WorkRequest) {}},
		"beyond the end": {func(t *testing.T, b fabric.Endpoint) fabric.Memory {
			return Register(t, b, Options.RemoteMemory, fabric.RemoteWrite)
		}, func(wr *fabric.WorkRequest) { wr.RemoteAddr += uint64(Options.RemoteMemory) - 3 }},
		"far away":        {own(fabric.RemoteWrite), func(wr *fabric.WorkRequest) { wr.RemoteAddr ^= 1 << 63 }},
		"around all ends": {own(fabric.RemoteWrite), func(wr *fabric.WorkRequest) { wr.RemoteAddr = ^uint64(0) }},
	} {
		for _, op := range []fabric.Opcode{fabric.Write, fabric.WriteImm} {
			t.Run(name, func(t *testing.T) {
				a, b := pair(t)
				m := c.victim(t, b)
				wr := fabric.WorkRequest{ID: 7, Op: op, Data: []byte("evil"), RemoteAddr: m.Addr(), RKey: m.RKey()}
				c.change(&wr)
				Post(t, a, wr)
				requireFailed(t, a, 7, fabric.RemoteAccess)
				assert.Equal(t, make([]byte, len(m.Bytes())), m.Bytes())
			})
		}
	}
	t.Run("memory that was given back", func(t *testing.T) {
		a, b := pair(t)
		m := Register(t, b, size, fabric.RemoteWrite)
		wr := fabric.WorkRequest{ID: 7, Op: fabric.Write, Data: []byte("late"), Signaled: true, RemoteAddr: m.Addr(), RKey: m.RKey()}
		freed := m.Free()
		Post(t, a, wr)
		if freed {
			requireFailed(t, a, 7, fabric.RemoteAccess)
			return
		}
		// This fabric frees no memory that the peer may write to.
		assert.Equal(t, fabric.Completion{ID: 7}, Poll(t, a, 1)[0])
		assert.Equal(t, "late", string(m.Bytes()[:4]))
	})
}

// requireFailed requires that a work request is the next to complete, and how. A device says more.
func requireFailed(t testing.TB, e fabric.Endpoint, id uint64, status fabric.Status) {
	t.Helper()
	c := Poll(t, e, 1)[0]
	assert.Equal(t, fabric.Completion{ID: id, Status: status}, fabric.Completion{ID: c.ID, Status: c.Status, Recv: c.Recv})
}

// place writes what from holds to the peer's memory, and returns how that ended.
func place(t *testing.T, a fabric.Endpoint, from fabric.Memory, addr uint64, rkey uint32) fabric.Status {
	t.Helper()
	Post(t, a, fabric.WorkRequest{Op: fabric.Write, Data: from.Bytes(), Memory: from, Signaled: true, RemoteAddr: addr, RKey: rkey})
	return Poll(t, a, 1)[0].Status
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
	from, to := Register(t, a, 4096, fabric.LocalWrite), Register(t, b, 4096, fabric.RemoteWrite)
	dropped := Register(t, b, 4096, fabric.RemoteWrite)
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

// What has arrived is polled before what is flushed.
func testDisconnect(t *testing.T, pair Pair) {
	a, b := pair(t)
	Post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: []byte("last"), Signaled: true})
	assert.Equal(t, fabric.OK, Poll(t, a, 1)[0].Status)
	require.NoError(t, a.Disconnect())
	flushes(t, a, Options.RecvQueue)
	require.ErrorIs(t, change(t, b), fabric.ErrDisconnected)
	require.NoError(t, b.Disconnect())
	assert.Equal(t, []byte("last"), Poll(t, b, 1)[0].Data)
	flushes(t, b, Options.RecvQueue-1)
	require.ErrorIs(t, change(t, a), fabric.ErrDisconnected)
	require.NoError(t, a.Disconnect())
	b.Wake()
	require.NoError(t, woken(t, Waiting(b)), "it is told once")

	Post(t, a, fabric.WorkRequest{ID: 9, Op: fabric.WriteImm})
	requireFailed(t, a, 9, fabric.Flushed)
}

// flushes requires that n receives are flushed next.
func flushes(t testing.TB, e fabric.Endpoint, n int) {
	t.Helper()
	for _, c := range Poll(t, e, n) {
		assert.True(t, c.Recv)
		assert.Equal(t, fabric.Flushed, c.Status)
	}
}
