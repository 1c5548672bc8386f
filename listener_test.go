package ringnet

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
)

func TestBacklogRefusesConnectionsBeyondIt(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		for name, bounded := range map[string]struct {
			by ListenConfig
			d  Dialer
		}{
			"by number":              {by: ListenConfig{Backlog: 2}},
			"by number, own links":   {by: ListenConfig{Backlog: 2}, d: Dialer{Config: dedicated}},
			"by memory of the links": {by: ListenConfig{PendingMemory: 2 * dedicated.PinnedMemory()}, d: Dialer{Config: dedicated}},
		} {
			l := h.listen(t, bounded.by)
			d := bounded.d
			before := Totals()
			for range 2 {
				dial(t, &d, h.network, l.Addr().String())
			}
			_, err := d.DialContext(timeoutWhen(t, l.hasRefused(2)), h.network, l.Addr().String())
			requireOpError(t, err, "dial", h.network, l.Addr().String(), syscall.ECONNREFUSED)
			require.ErrorContains(t, err, "backlog is full", name)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, name)
			require.True(t, err.(net.Error).Timeout(), name)
			require.Zero(t, l.Stats().Accepted, name)
			require.Equal(t, l.Stats().Failed, since(before, h.network).Failed, name)
			require.Equal(t, map[ReasonCode]uint64{ReasonFull: 1}, since(before, h.network).DialsFailed, name)

			acceptAll(t, l) // a dial that was given up may have succeeded at the listener
			c, err := bounded.d.Dial(h.network, l.Addr().String())
			require.NoError(t, err, name)
			defer c.Close()
		}
	})
}

// hasRefused returns a function that reports whether so many requests more have been refused
// for want of room. The first refusal is known to a dialer that has been refused twice.
func (l *Listener) hasRefused(more uint64) func() bool {
	before := l.Stats().Failed[ReasonFull]
	return func() bool { return l.Stats().Failed[ReasonFull] >= before+more }
}

// timeoutWhen returns a context whose time is over when something has happened.
func timeoutWhen(t *testing.T, happened func() bool) context.Context {
	ctx := passing{t.Context(), make(chan struct{})}
	go func() {
		for !happened() && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		close(ctx.over)
	}()
	return ctx
}

type passing struct {
	context.Context
	over chan struct{} // closed when the time is over
}

func (p passing) Deadline() (time.Time, bool) { return time.Now().Add(hang.After), true }
func (p passing) Done() <-chan struct{}       { return p.over }

func (p passing) Err() error {
	select {
	case <-p.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// dedicated gives each connection a link of its own.
var dedicated = &Config{Dedicated: true}

// Over shm the listener allocates the queues of both ends, and the dialer's request says
// how long its own are.
func TestPendingMemoryBoundsWhatDialersAskForOverSHM(t *testing.T) {
	l := shmHost(t).listen(t, ListenConfig{PendingMemory: 32 << 20})
	addr := l.Addr().String()
	dial(t, &greedy, "shm", addr)
	_, err := greedy.DialContext(timeoutWhen(t, l.hasRefused(2)), "shm", addr)
	require.ErrorContains(t, err, "backlog is full")
	dial(t, &Dialer{Config: dedicated}, "shm", addr)
	accept(t, l)
	accept(t, l) // a link that was dialed later may be made earlier
	dial(t, &greedy, "shm", addr)
}

// greedy has a listener of shm allocate 17 MB for queues.
var greedy = Dialer{Config: &Config{RecvQueue: 32768, Dedicated: true}}

func TestPendingMemoryRefusesADialerThatWantsMoreAtOnce(t *testing.T) {
	l := shmHost(t).listen(t, ListenConfig{PendingMemory: 16 << 20})
	_, err := greedy.Dial("shm", l.Addr().String())
	requireOpError(t, err, "dial", "shm", l.Addr().String(), syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "more than the listener's PendingMemory")
	require.False(t, err.(net.Error).Timeout())
	dial(t, &Dialer{Config: dedicated}, "shm", l.Addr().String())
}

// The largest number means no limit.
func TestListenWithoutLimits(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		h.listen(t, ListenConfig{Config: small, Backlog: math.MaxInt, PendingMemory: math.MaxInt})
	})
}

func TestAcceptFailsWhenTheDeviceIsRemoved(t *testing.T) {
	fail := make(chan struct{})
	better(t, nil, failing(fail))
	l := listen(t, ListenConfig{}, "rdma", "127.0.0.1:0")
	close(fail)
	_, err := l.Accept()
	requireOpError(t, err, "accept", "rdma", l.Addr().String(), syscall.ENETDOWN)
	require.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	require.False(t, err.(net.Error).Timeout())
}

// acceptAll accepts connections, and keeps them, until the listener is closed.
func acceptAll(t *testing.T, l net.Listener) {
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // the test may have closed it
		accepting.Wait()
	})
}

func TestPeersThatNeverConfirmMakeRoomForOthers(t *testing.T) {
	for name, lc := range map[string]ListenConfig{
		"by number": {Backlog: 4},
		"by memory": {PendingMemory: 4 * dedicated.PinnedMemory()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(time.Minute) })
				n := sim.New(sim.Link{Latency: time.Millisecond})
				simulate(t, n)
				mute := &hooked{Fabric: n, confirm: func(func() error) error { return nil }}
				addNetwork(t, "mute", namedNetwork{&transport.Network{Name: "mute", Open: opens(mute)}, "ip"})
				l := host{"sim", "10.0.0.1"}.listen(t, lc)
				acceptAll(t, l)
				for range 4 {
					dial(t, &Dialer{Config: dedicated}, "mute", l.Addr().String())
				}
				start := time.Now()
				dial(t, &Dialer{}, "sim", l.Addr().String())
				require.LessOrEqual(t, time.Since(start), transport.ConfirmWithin+4*fabric.LongestPause)
			})
		})
	}
}

// Who takes all places, and takes each again that it loses, keeps nobody else out.
func TestPlacesAreSharedFairly(t *testing.T) {
	const sender, honest = "10.0.0.2:0", "10.0.0.3:0"
	from := func(addr string) *Dialer {
		return &Dialer{Config: dedicated, Timeout: 10 * time.Minute, LocalAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))}
	}
	for name, test := range map[string]struct {
		lc   ListenConfig
		hold time.Duration // for which the hostile dialer keeps a place at most
	}{
		"by number":           {ListenConfig{Backlog: 4}, time.Hour},
		"by memory":           {ListenConfig{PendingMemory: 4 * dedicated.PinnedMemory()}, time.Hour},
		"places taken afresh": {ListenConfig{Backlog: 4}, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(time.Minute) })
				n := sim.New(sim.Link{Latency: time.Millisecond})
				simulate(t, n)
				mute := &hooked{Fabric: n, confirm: func(func() error) error { return nil }}
				addNetwork(t, "mute", namedNetwork{&transport.Network{Name: "mute", Open: opens(mute)}, "ip"})
				l := host{"sim", "10.0.0.1"}.listen(t, test.lc)
				acceptAll(t, l)
				var hostile sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				for range 16 {
					hostile.Go(func() {
						for ctx.Err() == nil {
							c, err := from(sender).DialContext(ctx, "mute", l.Addr().String())
							if err != nil {
								continue
							}
							assert.NoError(t, c.SetReadDeadline(time.Now().Add(test.hold)))
							stop := context.AfterFunc(ctx, func() { c.Close() })
							_, _ = c.Read(make([]byte, 1))
							stop()
							c.Close()
						}
					})
				}
				time.Sleep(10 * time.Second)
				for range 10 {
					start := time.Now()
					dial(t, from(honest), "sim", l.Addr().String())
					assert.LessOrEqual(t, time.Since(start), transport.ShareWithin+3*fabric.LongestPause)
				}
				cancel()
				hostile.Wait()
			})
		})
	}
}

// A handshake over a long way takes long. It is not ended for others that want its place.
func TestHandshakesOfFarPeersAreNotEndedForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		simulate(t, sim.New(sim.Link{Latency: 500 * time.Millisecond}))
		l := host{"sim", "10.0.0.1"}.listen(t, ListenConfig{Backlog: 2})
		acceptAll(t, l)
		var dialing sync.WaitGroup
		for range 8 {
			dialing.Go(func() {
				c, err := (&Dialer{Config: smallDedicated, Timeout: 10 * time.Minute}).Dial("sim", l.Addr().String())
				if assert.NoError(t, err) {
					defer c.Close()
				}
			})
		}
		dialing.Wait()
	})
}

func TestAcceptEndsWithItsDeadlineAndWithClose(t *testing.T) {
	overEachLeg(t, func(t *testing.T, h host, carrier string) {
		l := listenOn(t, h, ListenConfig{}).(interface {
			net.Listener
			SetDeadline(time.Time) error
		})
		addr := l.Addr().String()
		require.NoError(t, l.SetDeadline(time.Now().Add(10*time.Millisecond)))
		_, err := l.Accept()
		requireOpError(t, err, "accept", h.network, addr, os.ErrDeadlineExceeded)
		require.NoError(t, l.SetDeadline(time.Time{}))
		client, server := connect(t, h, l, &Dialer{})
		waits := make(chan error)
		go func() {
			_, err := l.Accept()
			waits <- err
		}()
		require.NoError(t, l.Close())
		requireOpError(t, <-waits, "accept", h.network, addr, net.ErrClosed)
		requireOpError(t, l.Close(), "close", h.network, addr, net.ErrClosed)
		require.ErrorIs(t, l.SetDeadline(time.Time{}), net.ErrClosed)
		write(t, server, "x")
		requireNext(t, client, "x")

		another := listenOn(t, h, ListenConfig{})
		waiting := dial(t, &Dialer{}, h.network, another.Addr().String())
		require.NoError(t, another.Close())
		_, err = waiting.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "what was not accepted")
	})
}

// Dialers of a listener that closes are refused or reset, as over TCP, at whatever stage
// they are.
func TestListenerCloseRefusesOrResetsWhoeverIsDialing(t *testing.T) {
	overEachNetwork(t, closeWhileDialed)
}

func closeWhileDialed(t *testing.T, h host) {
	address := h.any()
	for _, config := range []*Config{small, smallDedicated} {
		for round := range 40 {
			l := listen(t, ListenConfig{Config: small, Backlog: 8}, h.network, address)
			address = l.Addr().String() // which is free at once when l is closed
			d := Dialer{Config: config, Timeout: time.Minute}
			var dialing sync.WaitGroup
			for range 16 {
				dialing.Go(func() {
					c, err := d.Dial(h.network, l.Addr().String())
					if err == nil {
						_, err = c.Read(make([]byte, 1))
						assert.NoError(t, c.Close())
					}
					assert.True(t, errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET), "%v", err)
				})
			}
			time.Sleep(time.Duration(round) * 50 * time.Microsecond) // each time at another stage of the dials
			require.NoError(t, l.Close())
			dialing.Wait()
		}
	}
}

func TestAcceptSurvivesAPeerThatFailsItsHandshake(t *testing.T) {
	n, h := simHost(t)
	l := h.listen(t, ListenConfig{})
	ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr().(Addr).AddrPort())
	require.NoError(t, err)
	_, err = ep.Open(fabric.Options{SendQueue: 16, RecvQueue: 16, RecvSize: 24})
	require.NoError(t, err)
	_, err = ep.Connect(t.Context(), []byte("GET / HTTP/1.0"))
	var reject *fabric.RejectError
	require.ErrorAs(t, err, &reject)
	require.NoError(t, ep.Close())

	dial(t, &Dialer{}, h.network, l.Addr().String())
	s, err := l.Accept()
	require.NoError(t, err)
	s.Close()
}

func TestListenerCloseReturnsTheErrorOfTheFabricAsPackageNetWould(t *testing.T) {
	better(t, nil, &hooked{Fabric: sim.New(sim.Link{}), close: func(closeListener func() error) error {
		_ = closeListener()
		return syscall.EIO
	}})
	l, err := Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	requireOpError(t, l.Close(), "close", "rdma", l.Addr().String(), syscall.EIO)
	auto := listenAuto(t, "127.0.0.1:0")
	requireOpError(t, auto.Close(), "close", "auto", auto.Addr().String(), syscall.EIO)
}
