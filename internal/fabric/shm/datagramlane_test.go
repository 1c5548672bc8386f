//go:build linux

package shm

import (
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
)

// laneMemory is what a sender to a mailbox has of the process's budget, with one that has
// connected.
func laneMemory(t *testing.T, from, to mailbox) (bytes int, first *handle) {
	t.Helper()
	before, _ := budget.Process.State()
	first = from.resolve(t, to)
	to.requireSources(t, 1)
	after, _ := budget.Process.State()
	t.Cleanup(func() { budget.Process.SetLimit(0) })
	return after.Registered - before.Registered, first
}

// No sender is evicted if the new one would lack memory all the same.
func TestDatagramSendersAreEvictedOnlyIfThatIsEnough(t *testing.T) {
	a, b := openMailboxes(t, 64)
	lane, first := laneMemory(t, a, b)
	all := []*handle{first, a.resolve(t, b), a.resolve(t, b)}
	b.requireSources(t, len(all))
	used, _ := budget.Process.State()
	budget.Process.SetLimit(used.Registered - len(all)*lane + lane - 1)
	_, err := a.datagrams.resolve(ctx, b.local)
	require.ErrorContains(t, err, "ringnet.SetMemoryLimit")
	for _, h := range all {
		a.delivers(t, h, "still here", b)
	}
}

// A sender for which there is no room waits until there is.
func TestDatagramSendersWaitForRoom(t *testing.T) {
	a, b := openMailboxes(t, 64)
	_, first := laneMemory(t, a, b)
	used, _ := budget.Process.State()
	budget.Process.SetLimit(used.Registered)
	require.Equal(t, fabric.OK, a.post(first, "hello"))
	_, err := a.datagrams.resolve(ctx, b.local)
	require.True(t, fabric.IsFull(err))
	asked := sources.Load()
	resolved := make(chan error)
	go func() {
		h, err := a.Resolve(ctx, b.local)
		if err == nil {
			h.Close()
		}
		resolved <- err
	}()
	hang.Unless(t, func() bool { return sources.Load() >= asked+3 })
	require.Equal(t, "hello", b.next(t))
	require.NoError(t, <-resolved)
	first.requireGone(t)
}

// A sender that has to make room while it sends loses nothing, and nothing comes twice.
func TestDatagramsOfEvictedSenders(t *testing.T) {
	a, b := openMailboxes(t, 16)
	const evictions = 100
	over := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() { a.keepSending(t, b, over) })
	defer sending.Wait()
	defer close(over)
	p := make([]byte, datagramSize)
	d := []fabric.Datagram{{Buffers: [][]byte{p}}}
	received, evicted, idle := 0, 0, true
	for began := time.Now(); evicted < evictions; {
		if b.Receive(d) == 1 {
			require.Equal(t, strconv.Itoa(received), string(p[:d[0].Len]))
			received++
			began, idle = time.Now(), false
			continue
		}
		require.Less(t, time.Since(began), hang.After, "nothing arrives")
		b.mu.Lock()
		if !idle && b.evict(anotherHere(), 0) != nil {
			evicted++
			idle = true
		}
		b.mu.Unlock()
	}
	t.Logf("%d datagrams by %d lanes", received, evicted)
}

// keepSending sends 0, 1, 2 and so on, each once unless there is nobody, until over.
func (m mailbox) keepSending(t *testing.T, to mailbox, over <-chan struct{}) {
	var h fabric.AddressHandle
	for i := 0; ; {
		select {
		case <-over:
			if h != nil {
				h.Close()
			}
			return
		default:
		}
		if h == nil {
			var err error
			if h, err = m.Resolve(ctx, to.local); !assert.NoError(t, err) {
				return
			}
		}
		switch m.post(h, strconv.Itoa(i)) {
		case fabric.OK:
			i++
		case fabric.Flushed:
			h.Close()
			h = nil
		default:
			runtime.Gosched()
		}
	}
}

// A datagram that has just been written when its receiver tells the sender to go is
// received, or sent to another.
func TestDatagramsAreReceivedOrWithdrawn(t *testing.T) {
	leave := func(b mailbox) {
		b.mu.Lock()
		b.sources[0].drain()
		b.mu.Unlock()
	}
	for name, test := range map[string]struct {
		withdrawn bool
		run       func(b mailbox, withdraw func() bool) (received, withdrawn bool)
	}{
		"about to be received": {true, func(b mailbox, withdraw func() bool) (bool, bool) {
			leave(b)
			withdrawn := withdraw()
			return b.receives(), withdrawn
		}},
		"being received": {false, func(b mailbox, withdraw func() bool) (_, withdrawn bool) {
			leave(b)
			b.filter = func(*fabric.Datagram) bool {
				withdrawn = withdraw()
				return true
			}
			return b.receives(), withdrawn
		}},
		"received before the news": {false, func(b mailbox, withdraw func() bool) (bool, bool) {
			received := b.receives()
			leave(b)
			return received, withdraw()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := openMailboxes(t, 16)
			e, err := a.f.newDialer(a.local, b.local)
			require.NoError(t, err)
			h, err := newHandle(ctx, e)
			require.NoError(t, err)
			t.Cleanup(func() { _ = e.Close() })
			b.requireSources(t, 1)
			require.Equal(t, fabric.OK, a.post(h, "hello"))
			received, withdrawn := test.run(b, e.withdraw)
			require.Equal(t, test.withdrawn, withdrawn)
			require.Equal(t, !withdrawn, received)
			require.False(t, b.receives())
		})
	}
}

// A sender that goes on sending after it was evicted does not keep its lane.
func TestDatagramsOfASenderThatIgnoresItsEnd(t *testing.T) {
	a, b := openMailboxes(t, 16)
	h := a.resolve(t, b)
	b.requireSources(t, 1)
	h.flood(4)
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sources[0]
	posted := s.e.own.posted.Load()
	h.mu.Lock()
	s.drain()
	h.write(4)
	h.mu.Unlock()
	require.Equal(t, draining, s.state)
	wanted, dropped := s.receive(make([]fabric.Datagram, 16))
	require.Equal(t, 4, wanted+dropped)
	require.Equal(t, ended, s.state)
	require.Equal(t, posted, s.e.own.posted.Load())
}

// Whichever of a sender's two lanes the receiver admits first, it receives first from the one
// that was made first.
func TestDatagramsDoNotOvertakeThoseOfALaneThatIsAboutToEnter(t *testing.T) {
	a, b := openMailboxes(t, 16)
	e, err := a.f.newDialer(a.local, b.local)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.Close() })
	_, err = e.Open(fabric.Options{SendQueue: 1, RecvQueue: 1})
	require.NoError(t, err)
	_, err = e.Connect(ctx, nil)
	require.NoError(t, err)
	require.Equal(t, fabric.OK, a.post(&handle{e: e}, "first"))
	require.Equal(t, fabric.OK, a.post(a.resolve(t, b), "second"))
	for began := time.Now(); time.Since(began) < 20*time.Millisecond; {
		require.False(t, b.receives())
	}
	require.NoError(t, e.Confirm())
	require.Equal(t, "first", b.next(t))
	require.Equal(t, "second", b.next(t))
}

// A source waits for earlier ones of the same sender to be admitted, and not for those of another
// user, who could make it wait for ever.
func TestDatagramSendersWaitForTheirPredecessors(t *testing.T) {
	a, b := openMailboxes(t, 16)
	sender, other := &endpoint{local: b.local, remote: a.local}, &endpoint{local: b.local, remote: b.local}
	in, user := b.inlets[0], unix.Ucred{Uid: 1}
	for name, test := range map[string]struct {
		before source
		want   bool
	}{
		"the same":       {source{e: sender, in: in, sender: user}, true},
		"another sender": {source{e: other, in: in, sender: user}, false},
		"to a group":     {source{e: sender, in: new(inlet), sender: user}, false},
		"another user":   {source{e: sender, in: in, sender: unix.Ucred{Uid: 2}}, false},
	} {
		s := source{e: sender, in: in, sender: user}
		d := datagrams{inflow: inflow{entering: []*source{&test.before, &s, &test.before}}}
		require.Equal(t, test.want, d.predecessorEnters(&s), name)
		require.False(t, d.predecessorEnters(&test.before), name)
	}
}
