//go:build linux

package shm

import (
	"errors"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
)

// mailbox is a queue pair for datagrams, and the news that there are any.
type mailbox struct {
	*datagrams
	news chan struct{}
}

func newMailbox(f fabric.Fabric, at netip.AddrPort, queue int) (mailbox, error) {
	m := mailbox{news: make(chan struct{}, 1)}
	ep, err := f.(fabric.Datagrams).ListenPacket(at, fabric.DatagramOptions{
		RecvQueue: queue,
		Filter:    func(*fabric.Datagram) bool { return true },
		Notify: func() {
			select {
			case m.news <- struct{}{}:
			default:
			}
		},
	})
	if err == nil {
		m.datagrams = ep.(*datagrams)
	}
	return m, err
}

func openMailbox(t *testing.T, f fabric.Fabric, queue int) mailbox {
	t.Helper()
	m, err := newMailbox(f, netip.AddrPortFrom(host, 0), queue)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// openMailboxes opens two, with a receive queue for so many datagrams.
func openMailboxes(t *testing.T, queue int) (a, b mailbox) {
	t.Helper()
	f := newFabric(t)
	return openMailbox(t, f, queue), openMailbox(t, f, queue)
}

func (m mailbox) resolve(t *testing.T, to mailbox) *handle {
	t.Helper()
	h, err := m.Resolve(ctx, to.local)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h.(*handle)
}

// post sends a datagram, and returns its status.
func (m mailbox) post(to fabric.AddressHandle, text string) fabric.Status {
	d := []fabric.Datagram{{To: to, Buffers: [][]byte{[]byte(text)}}}
	m.Send(d)
	return d[0].Status
}

// delivers requires that a datagram that it sends is the next to arrive.
func (m mailbox) delivers(t *testing.T, by fabric.AddressHandle, text string, to mailbox) {
	t.Helper()
	require.Equal(t, fabric.OK, m.post(by, text))
	require.Equal(t, text, to.next(t))
}

// next waits for the next datagram.
func (m mailbox) next(t *testing.T) string {
	t.Helper()
	text, _ := m.nextDatagram(t)
	return text
}

func (m mailbox) nextDatagram(t *testing.T) (string, fabric.Datagram) {
	t.Helper()
	p := make([]byte, datagramSize)
	d := []fabric.Datagram{{Buffers: [][]byte{p}}}
	for late := time.After(hang.After); ; {
		m.Arm()
		if m.Receive(d) == 1 {
			return string(p[:d[0].Len]), d[0]
		}
		select {
		case <-m.news:
		case <-late:
			require.FailNow(t, "no datagram")
		}
	}
}

// requireSources requires that there are so many senders before long.
func (m mailbox) requireSources(t *testing.T, n int) {
	t.Helper()
	hang.Unless(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.sources) == n
	})
}

// requireGone requires that the other end gives a handle's connection up.
func (h *handle) requireGone(t *testing.T) {
	t.Helper()
	hang.Unless(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.closed
	})
}

func TestDatagramsGiveEverythingBack(t *testing.T) {
	leavesNothing(t)
	f := newFabric(t)
	used, _ := budget.Process.State()
	t.Cleanup(func() {
		after, _ := budget.Process.State()
		require.Equal(t, used, after)
	})
	group := someGroup()
	a, b := openMailbox(t, f, 16), openMailbox(t, f, 16)
	a.join(t, group)
	for range 20 {
		c := openMailbox(t, f, 16)
		there, back := c.resolve(t, a), a.resolve(t, c)
		require.Equal(t, fabric.OK, c.post(there, "to one"))
		require.Equal(t, fabric.OK, a.post(back, "to one"))
		if there, err := b.Resolve(ctx, c.local); err == nil {
			there.Close() // and says nothing
		}
		there.Close()

		b.join(t, group)
		h := c.resolveMembers(t, group)
		c.join(t, group)
		h.requireLanes(t, 3)
		c.delivers(t, h, "to all", b)
		require.NoError(t, b.Leave(group, netip.Addr{}))
		h.requireLanes(t, 2)
		h.Close()
		require.NoError(t, c.Close())
		require.ElementsMatch(t, []string{"to one", "to all"}, []string{a.next(t), a.next(t)})
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Zero(t, namesOf(t, group))
}

// A hostile sender costs the receiver only the lane between the two.
func TestDatagramsSurviveHostileSenders(t *testing.T) {
	for name, attack := range map[string]func(e *endpoint){
		"longer than there is room": func(e *endpoint) { e.peer.slot(e.sent).Store(lapBit | sendBit | (datagramSize+1)<<lengthShift) },
		"as long as can be said":    func(e *endpoint) { e.peer.slot(e.sent).Store(lapBit | sendBit | maxMessage<<lengthShift) },
		"without a header":          func(e *endpoint) { e.peer.slot(e.sent).Store(lapBit | sendBit | (fabric.HeaderSize-1)<<lengthShift) },
		"no send":                   func(e *endpoint) { e.peer.slot(e.sent).Store(lapBit | 100<<lengthShift) },
		"with an immediate":         func(e *endpoint) { e.peer.slot(e.sent).Store(lapBit | sendBit | 100<<lengthShift | 1) },
		"doorbells": func(e *endpoint) {
			for range 5000 { // far more often than anybody has slept
				_ = e.sock.ring()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			a, b := openMailboxes(t, 16)
			honest, hostile := a.resolve(t, b), a.resolve(t, b)
			a.delivers(t, hostile, "in good faith", b)
			hostile.mu.Lock()
			attack(hostile.e)
			hostile.mu.Unlock()
			for i := range 100 {
				a.delivers(t, honest, strconv.Itoa(i), b)
			}
			hostile.requireGone(t)
			require.Equal(t, fabric.Flushed, a.post(hostile, "more"))
		})
	}
}

// What a receiver makes of a sender's lanes is nothing to a group's other members and to the
// sender. Nothing is sent past what it can have posted, whatever it says.
func TestDatagramsSurviveHostileReceivers(t *testing.T) {
	posts := func(n uint64) func(own *segment) { return func(own *segment) { own.posted.Store(n) } }
	for name, test := range map[string]struct {
		attack func(own *segment) // the receiver's part of a lane
		gone   bool               // and so is the lane
	}{
		"posts nothing":     {posts(0), true},
		"posts one":         {posts(1), true},
		"posts much more":   {posts(1 << 40), true},
		"posts the most":    {posts(^uint64(0)), true},
		"says that it left": {func(own *segment) { own.waiting.Store(ownerGone) }, false},
		"reads nothing":     {func(*segment) {}, false},
		"sleeps always":     {func(own *segment) { own.waiting.Store(7) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			f := newFabric(t)
			group := someGroup()
			a, honest, hostile := openMailbox(t, f, 16), openMailbox(t, f, 16), openMailbox(t, f, 16)
			honest.join(t, group)
			hostile.join(t, group)
			all, single := a.resolveMembers(t, group), a.resolve(t, hostile)
			all.requireLanes(t, 2)
			for range 16 {
				require.Equal(t, fabric.OK, a.post(single, "fits"))
			}
			require.Equal(t, fabric.RNRRetryExceeded, a.post(single, "does not"))
			single.mu.Lock()
			test.attack(single.e.peer)
			single.mu.Unlock()
			for i := range 200 {
				a.delivers(t, all, strconv.Itoa(i), honest)
				hostile.mu.Lock()
				for _, s := range hostile.sources {
					if s.state == receiving {
						test.attack(s.e.own)
					}
				}
				hostile.mu.Unlock()
				require.NotEqual(t, fabric.OK, a.post(single, "does not"))
			}
			if test.gone {
				require.Equal(t, fabric.Flushed, a.post(single, "does not"))
				single.requireGone(t)
			}
		})
	}
}

func TestDatagramsOfAFloodDisplaceNoOthers(t *testing.T) {
	a, b := openMailboxes(t, 16)
	flood, quiet := a.resolve(t, b), a.resolve(t, b)
	lost := 0
	for i := range 1000 {
		if a.post(flood, "flood") == fabric.RNRRetryExceeded {
			lost++
		}
		if i%100 == 0 {
			require.Equal(t, fabric.OK, a.post(quiet, strconv.Itoa(i)))
		}
	}
	require.Equal(t, 1000-16, lost)
	got := make(map[string]int)
	for range 16 + 10 {
		got[b.next(t)]++
	}
	require.Equal(t, 16, got["flood"])
	require.Len(t, got, 11)
}

func TestDatagramSendersAreGivenNoMemory(t *testing.T) {
	a, b := openMailboxes(t, 16)
	for _, o := range []fabric.Options{
		{SendQueue: 1, RecvQueue: 1000, RecvSize: 1000},
		{SendQueue: 1, RecvQueue: 1, RemoteMemory: 1 << 20},
	} {
		e, err := a.f.newDialer(a.local, b.local)
		require.NoError(t, err)
		_, err = e.Open(o)
		require.NoError(t, err)
		_, err = e.Connect(ctx, nil)
		require.ErrorContains(t, err, errTooMuch.Error())
		require.NoError(t, e.Close())
	}
}

// needsDescriptors skips a test where this process may not have so many.
func needsDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur < n {
		t.Skipf("only %d descriptors", limit.Cur)
	}
}

// Connections and datagrams have ports of their own, as TCP and UDP have.
func TestDatagramsHavePortsOfTheirOwn(t *testing.T) {
	f := newFabric(t)
	a := openMailbox(t, f, 1)
	l, err := f.Listen(a.local, 1)
	require.NoError(t, err)
	defer l.Close()
	_, err = f.(fabric.Datagrams).ListenPacket(a.local, fabric.DatagramOptions{RecvQueue: 1})
	require.True(t, errors.Is(err, syscall.EADDRINUSE))
}
