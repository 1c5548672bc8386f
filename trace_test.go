package ringnet

import (
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// recorder records the calls of a Trace.
type recorder struct {
	mu       sync.Mutex
	dials    []DialEvent
	accepts  []AcceptEvent
	closes   []CloseEvent
	up, down []LinkInfo
	moved    []LinkInfo
	waited   []time.Duration
	causes   []error // of LinkMoved and of LinkDown
	look     func()  // is called by each of them; nil: nothing
}

func record[T any](r *recorder, to *[]T) func(T) {
	return func(event T) {
		if r.look != nil {
			r.look()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		*to = append(*to, event)
	}
}

func (r *recorder) trace() *Trace {
	return &Trace{
		Dialed:   record(r, &r.dials),
		Accepted: record(r, &r.accepts),
		Closed:   record(r, &r.closes),
		LinkUp:   record(r, &r.up),
		LinkMoved: func(l LinkInfo, waited time.Duration, cause error) {
			record(r, &r.moved)(l)
			record(r, &r.waited)(waited)
			record(r, &r.causes)(cause)
		},
		LinkDown: func(l LinkInfo, cause error) {
			record(r, &r.down)(l)
			record(r, &r.causes)(cause)
		},
	}
}

// has returns a function that evaluates a condition under the recorder's lock.
func (r *recorder) has(condition func() bool) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return condition()
	}
}

func TestTraceTellsOfAConnectionAtBothEnds(t *testing.T) {
	overEachLeg(t, func(t *testing.T, h host, carrier string) {
		var l net.Listener
		look := func() { // all of which a Trace may call
			Totals()
			Links()
			Memory()
			switch l := l.(type) {
			case *Listener:
				l.Stats()
			case *AutoListener:
				l.Stats()
			}
		}
		dialer, listener := recorder{look: look}, recorder{look: look}
		l = listenOn(t, h, ListenConfig{Trace: listener.trace()})
		d := &Dialer{Trace: dialer.trace()}
		client, server := connect(t, h, l, d)
		ask(t, client, server, 1000)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())

		require.Len(t, dialer.dials, 1)
		dialed := dialer.dials[0]
		require.Positive(t, dialed.Took)
		dialed.Took = 0
		at := carrying(client)
		want := DialEvent{Network: h.network, Address: l.Addr().String(), Carrier: carrier, Local: at.LocalAddr(), Remote: at.RemoteAddr()}
		if auto, ok := client.(*AutoConn); ok {
			want.PassedOver = auto.PassedOver()
		}
		require.Equal(t, want, dialed)
		require.Equal(t, []AcceptEvent{{carrier, at.RemoteAddr(), at.LocalAddr()}}, listener.accepts)
		require.Empty(t, dialer.accepts)
		require.Empty(t, listener.dials)

		for _, end := range []struct {
			*recorder
			at net.Conn
		}{{&dialer, at}, {&listener, carrying(server)}} {
			require.Len(t, end.closes, 1)
			closed := end.closes[0]
			require.Positive(t, closed.Age)
			require.EqualValues(t, 1000, closed.Stats.BytesWritten)
			require.EqualValues(t, 1000, closed.Stats.BytesReceived)
			closed.Age, closed.Stats = 0, Stats{}
			require.Equal(t, CloseEvent{Carrier: carrier, Local: end.at.LocalAddr(), Remote: end.at.RemoteAddr(), Dialed: end.at == at}, closed)
		}
		require.Error(t, client.Close())
		require.Len(t, dialer.closes, 1, "once")
	})
}

// carrying returns the connection that carries one of auto, or c.
func carrying(c net.Conn) net.Conn {
	if auto, ok := c.(*AutoConn); ok {
		return auto.NetConn()
	}
	return c
}

func TestTraceTellsOfLinks(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		var dialer, listener recorder
		l := listenOn(t, h, ListenConfig{Trace: listener.trace()})
		client, server := connect(t, h, l, &Dialer{Trace: dialer.trace()})
		ask(t, client, server, 1000)
		for _, r := range []*recorder{&dialer, &listener} {
			hang.Unless(t, r.has(func() bool { return len(r.up) == 1 }))
			require.Equal(t, h.network, r.up[0].Network)
			require.Equal(t, r == &dialer, r.up[0].Dialed)
			require.Empty(t, r.down)
		}
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
		for _, r := range []*recorder{&dialer, &listener} {
			hang.Unless(t, func() bool {
				CloseIdleLinks()
				return r.has(func() bool { return len(r.causes) == 1 })()
			})
			require.Equal(t, r.up[0].Local, r.down[0].Local)
			require.EqualValues(t, 1000, r.down[0].BytesSent)
			require.EqualValues(t, 1000, r.down[0].BytesReceived)
			require.NoError(t, r.causes[0], "it was not needed any more")
		}
	})
}

func TestTraceTellsWhyALinkIsDown(t *testing.T) {
	n, h := simHost(t)
	var r recorder
	client, _ := connect(t, h, h.listen(t, ListenConfig{}), &Dialer{Trace: r.trace(), Config: impatient})
	before := Totals()
	breakLink(n, client)
	_, err := client.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	hang.Unless(t, r.has(func() bool { return len(r.causes) == 1 }))
	require.ErrorIs(t, r.causes[0], syscall.ECONNRESET)
	require.ErrorContains(t, r.causes[0], "cable on fire")
	require.ErrorContains(t, err, r.causes[0].Error())
	hang.Unless(t, func() bool { return since(before, "sim").LinksLost[ReasonReset] == 2 })
}

func TestTraceTellsOfALinkThatMoves(t *testing.T) {
	n, h := simHost(t)
	var dialer, listener recorder
	l := listenOn(t, h, ListenConfig{Trace: listener.trace()})
	client, server := connect(t, h, l, &Dialer{Trace: dialer.trace()})
	began := time.Now()
	breakLink(n, client)
	ask(t, client, server, 1000)
	for _, r := range []*recorder{&dialer, &listener} {
		hang.Unless(t, r.has(func() bool { return len(r.causes) == 1 }))
		require.EqualValues(t, 1, r.moved[0].Moves)
		require.False(t, r.moved[0].Seeking)
		require.Equal(t, r.up[0].Local, r.moved[0].Local)
		require.NotEqual(t, r.up[0].Path, r.moved[0].Path)
		require.Positive(t, r.waited[0])
		require.Less(t, r.waited[0], time.Since(began))
		require.ErrorIs(t, r.causes[0], syscall.ECONNRESET)
	}
	// The listener may meet the broken queue pair, and ask over another, before the dialer's
	// device has said why.
	require.Regexp(t, "cable on fire|the peer has lost the queue pair", dialer.causes[0].Error())
	require.Empty(t, append(dialer.down, listener.down...))
}

// Dialers that differ in nothing but Trace share links. The Trace of each gets its own
// connections, and that of the Dialer whose dial made the link gets the link.
func TestTraceTellsOfALinkToTheDialerThatMadeIt(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		limitMemory(t, 0) // no links of other tests are left
		l := h.listen(t, ListenConfig{})
		var first, second recorder
		connect(t, h, l, &Dialer{Trace: first.trace()})
		connect(t, h, l, &Dialer{Trace: second.trace()})
		connect(t, h, l, &Dialer{})
		require.Len(t, linksTo(l), 1)
		require.Len(t, first.up, 1)
		require.Empty(t, second.up)
		require.Len(t, first.dials, 1)
		require.Len(t, second.dials, 1)
	})
}

func TestTraceTellsOfDialsThatFail(t *testing.T) {
	better(t, nil, nil)
	var r recorder
	d := Dialer{Trace: r.trace()}
	address := anyPort(t).String()
	_, err := d.Dial("auto", address)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Len(t, r.dials, 1)
	dialed := r.dials[0]
	require.Equal(t, err, dialed.Err)
	require.Equal(t, "auto", dialed.Network)
	require.Equal(t, address, dialed.Address)
	require.Empty(t, dialed.Carrier)
	require.Nil(t, dialed.Local)
	require.Len(t, dialed.PassedOver, 2)
	require.ErrorIs(t, dialed.PassedOver[0], errAbsent)

	d.Require = []string{"rdma"}
	_, err = d.Dial("auto", address)
	require.Error(t, err)
	require.Len(t, r.dials[1].PassedOver, 2)
}

func TestTraceTellsOfConnectionsThatWereDropped(t *testing.T) {
	overEachLeg(t, func(t *testing.T, h host, carrier string) {
		alone(t)
		var r recorder
		l := listenOn(t, h, ListenConfig{})
		before := Totals()
		func() {
			c, err := (&Dialer{Trace: r.trace()}).Dial(h.network, l.Addr().String())
			require.NoError(t, err)
			_, err = c.Write(make([]byte, 1000))
			require.NoError(t, err)
		}()
		accept(t, l)
		hang.Unless(t, func() bool {
			runtime.GC()
			return r.has(func() bool { return len(r.closes) == 1 })()
		})
		require.True(t, r.closes[0].Dropped)
		require.EqualValues(t, 1000, r.closes[0].Stats.BytesWritten)
		require.EqualValues(t, 1, since(before, carrier).Closed)
		require.EqualValues(t, 1000, since(before, carrier).BytesSent)
	})
}

func TestTraceTellsWhyCloseHasFailed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, h := simHost(t)
		var r recorder
		client, _ := connect(t, h, h.listen(t, ListenConfig{}), &Dialer{Trace: r.trace(), Config: impatient})
		n.Cut(true)
		write(t, client, "into the void")
		err := client.Close()
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Equal(t, err, r.closes[0].Err)
		hang.Unless(t, r.has(func() bool { return len(r.causes) == 1 }))
		require.ErrorIs(t, r.causes[0], syscall.ETIMEDOUT)
	})
}
