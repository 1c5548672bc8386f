//go:build linux

package shm

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
)

// postAll sends numbers, as text.
func (m mailbox) postAll(t *testing.T, to *handle, from, until int) {
	t.Helper()
	for i := from; i < until; i++ {
		require.Equal(t, fabric.OK, m.post(to, strconv.Itoa(i)))
	}
}

// requireNumbers requires that these numbers come next, in this order.
func (m mailbox) requireNumbers(t *testing.T, from, until int) {
	t.Helper()
	for i := from; i < until; i++ {
		require.Equal(t, strconv.Itoa(i), m.next(t))
	}
}

// Datagrams of one sender do not overtake each other when it reaches the receiver anew,
// whether the receiver knows already that the old connection has ended or not.
func TestDatagramsDoNotOvertakeThoseOfTheLaneBefore(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, h *handle){
		"that has ended": func(t *testing.T, h *handle) {
			h.Close()
			h.requireGone(t)
		},
		"that has not": func(*testing.T, *handle) {},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := openMailboxes(t, 16)
			const lanes, each = 4, 6
			for i := range lanes {
				h := a.resolve(t, b)
				a.postAll(t, h, each*i, each*i+each)
				b.requireSources(t, 2*i+1)
				leave(t, h)
				a.resolve(t, b) // and sends nothing
				b.requireSources(t, 2*i+2)
			}
			b.requireNumbers(t, 0, lanes*each)
		})
	}
}

// flood writes n datagrams, not minding what the receiver has posted, and wakes nobody.
func (h *handle) flood(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write(n)
}

// write is flood, called with mu held: until it is released the memory stays.
func (h *handle) write(n int) {
	for range n {
		p, pos := h.e.peer, h.e.sent
		p.slot(pos).Store(p.lapOf(pos) | sendBit | 100<<lengthShift)
		h.e.sent++
	}
}

// However fast a sender writes datagrams that the filter drops, Receive takes one queue full
// and returns, and calls Notify, since there may be more.
func TestDatagramsThatTheFilterDrops(t *testing.T) {
	f := newFabric(t)
	const queue = 16
	const enough = 10 * queue
	a, b := openMailbox(t, f, 16), openMailbox(t, f, queue)
	h := a.resolve(t, b)
	b.requireSources(t, 1)
	seen := 0
	b.filter = func(*fabric.Datagram) bool {
		if seen++; seen < enough {
			h.flood(1)
		}
		return seen == enough
	}
	require.Equal(t, fabric.OK, a.post(h, "the first"))
	d := []fabric.Datagram{{}}
	for received := false; !received; {
		b.Arm()
		before := seen
		received = b.Receive(d) == 1
		require.LessOrEqual(t, seen-before, queue)
		if received {
			break
		}
		select {
		case <-b.news:
		case <-time.After(hang.After):
			require.FailNow(t, "nobody tells that there is more")
		}
	}
}

// anotherHere returns a source for one more sender of this process.
func anotherHere() *source {
	return &source{sender: unix.Ucred{Uid: ownUser(), Pid: int32(os.Getpid())}}
}

// A source that has been evicted makes room for one sender, once it has been released, and
// not for all that come until then.
func TestDatagramSendersEnterOnceThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &datagrams{notify: func() {}}
		for range maxSources {
			d.sources = append(d.sources, &source{d: d, state: ended, memory: budget.Account{Budget: budget.Process}, freed: make(chan struct{})})
		}
		for range 3 {
			go d.enter(nil, &endpoint{sock: &socket{fd: -1}}, nil)
		}
		for entered := range 4 {
			synctest.Wait()
			require.Len(t, d.entering, entered)
			if entered < 3 {
				gone := d.evict(anotherHere(), 0)
				d.remove(gone)
				close(gone.freed)
			}
		}
	})
}

// Silent senders are evicted for new ones, both when memory is short and when there are too
// many. Senders whose datagrams have arrived unread are not.
func TestDatagramSendersThatAreSilentAreEvicted(t *testing.T) {
	a, b := openMailboxes(t, 64)
	lane, first := laneMemory(t, a, b)
	used, _ := budget.Process.State()
	const fit = 4
	budget.Process.SetLimit(used.Registered + (fit-1)*lane)
	old := a.resolve(t, b)
	a.delivers(t, old, "longer ago than any other", b)
	a.delivers(t, first, "longer ago than the others that are new", b)
	all := []*handle{a.resolve(t, b)}
	b.requireSources(t, 3)
	for range 2 {
		all = append(all, a.resolve(t, b))
	}
	old.requireGone(t)
	a.delivers(t, all[0], "still here", b)
	require.Equal(t, fabric.OK, a.post(first, "hello"))
	for range 3 * fit {
		all = append(all, a.resolve(t, b))
	}
	all[0].requireGone(t)
	require.Equal(t, fabric.OK, a.post(all[len(all)-1], "hello, too"))
	require.Equal(t, "hello", b.next(t))
	require.Equal(t, "hello, too", b.next(t))
}

// Senders that have sent without ringing are evicted, too, once Receive has taken what they
// sent.
func TestDatagramSendersThatDoNotRingAreEvicted(t *testing.T) {
	a, b := openMailboxes(t, 4)
	h := a.resolve(t, b)
	b.requireSources(t, 1)
	h.flood(1)
	b.mu.Lock()
	none := b.evict(anotherHere(), 0)
	b.mu.Unlock()
	require.Nil(t, none)
	<-b.news
	require.True(t, b.receives())
	b.mu.Lock()
	b.evict(anotherHere(), 0)
	b.mu.Unlock()
	h.requireGone(t)
}

// holdUp keeps the listener of the newest inlet from accepting more than one sender more
// before it is released.
func (m mailbox) holdUp() (release func()) {
	closes := make(blocked)
	m.mu.Lock()
	defer m.mu.Unlock()
	for range maxClosing + maxWaiting {
		m.inlets[len(m.inlets)-1].listener.sock.closer.close(closes)
	}
	return func() { close(closes) }
}

// Errors do not end a listener for datagrams: no call could return them.
func TestDatagramListenersGoOnAfterErrors(t *testing.T) {
	f := newFabric(t)
	a, b := openMailbox(t, f, 16), openMailbox(t, f, 16)
	release := b.holdUp()
	resolved := make(chan error)
	for range 2 { // the first may come through
		go func() {
			h, err := a.Resolve(ctx, b.local)
			if err == nil {
				h.Close()
			}
			resolved <- err
		}()
	}
	time.Sleep(10 * time.Millisecond) // or they come when all is well again
	release()
	require.NoError(t, <-resolved)
	require.NoError(t, <-resolved)

	group := someGroup()
	b.join(t, group)
	release = b.holdUp()
	h := []*members{a.resolveMembers(t, group), openMailbox(t, f, 1).resolveMembers(t, group)}
	release()
	h[0].requireLanes(t, 1)
	h[1].requireLanes(t, 1)
}
