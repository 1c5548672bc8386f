package link

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// A device may take tens of milliseconds for each MiB that it registers. Who waits for that is
// who wants the memory.

// slowDevice takes as long to register memory as a test wants it to.
type slowDevice struct {
	begun chan struct{} // closed when the first registration has begun
	end   chan error    // has its result; closed, all others have theirs
}

// slowly has what a link registers with the endpoint that it has now wait for slowDevice.end.
func slowly(n *sim.Network, l *Link) slowDevice {
	d := slowDevice{make(chan struct{}), make(chan error, 1)}
	begin := sync.OnceFunc(func() { close(d.begun) })
	slow := endpointOf(l)
	n.SetFaults(sim.Faults{Register: func(e *sim.Endpoint, _ int) error {
		if e != slow {
			return nil
		}
		begin()
		return <-d.end
	}})
	return d
}

// finish lets what is under way, and whatever comes, end with err, or else well.
func (d slowDevice) finish(err error) {
	d.end <- err
	close(d.end)
}

// fill has a stream's peer send more than its ring holds, so that the ring has to grow, and
// returns a function that reads it all.
func fill(t *testing.T, c, s *Stream) (drain func()) {
	t.Helper()
	all := make([]byte, 100<<10)
	for i := range all {
		all[i] = byte(i >> 3)
	}
	written := make(chan error, 1)
	go func() { written <- writeAll(c, all) }()
	return func() {
		t.Helper()
		got := make([]byte, 0, len(all))
		for len(got) < len(all) {
			m, err := s.Read(got[len(got):cap(got)], unlimited())
			require.NoError(t, err)
			got = got[:len(got)+m]
		}
		require.Equal(t, all, got)
		require.NoError(t, <-written)
	}
}

// requireFree makes the calls that other streams of a link may make while memory is registered
// for one of them.
func requireFree(t *testing.T, c, s *Stream) {
	t.Helper()
	for _, l := range []*Link{c.link, s.link} {
		require.False(t, isHeld(l), "calls of the link's other streams have to wait")
	}
	requireEcho(t, c, s)
	for _, s := range []*Stream{c, s} {
		soon := deadline.New()
		soon.Set(time.Now().Add(time.Second))
		_, err := s.Read(make([]byte, 1), soon)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	require.NotEmpty(t, List())
}

// crowd is a link at both ends with streams for which all of the memory is taken that was
// registered for streams.
type crowd struct {
	n    *sim.Network
	c, s []*Stream // of which the first is the link's first
	b    *backlog
}

func newCrowd(t *testing.T, n *sim.Network, cfg Setup) *crowd {
	t.Helper()
	c, s, b := connectLink(t, n, cfg, cfg)
	w := &crowd{n, []*Stream{c}, []*Stream{s}, b}
	for range 15 { // with the first they fill slabs of 16, 16, 32, 64 and 128 KiB
		client, err := c.link.Open(context.Background())
		require.NoError(t, err)
		w.c, w.s = append(w.c, client), append(w.s, b.accept())
	}
	return w
}

// close closes all streams that are open.
func (w *crowd) close(t *testing.T) {
	t.Helper()
	for _, s := range append(w.c, w.s...) {
		require.NoError(t, s.Close(time.Minute))
	}
}

// closeLast closes the last of the streams.
func (w *crowd) closeLast(t *testing.T) {
	t.Helper()
	last := len(w.s) - 1
	require.NoError(t, w.c[last].Close(time.Minute))
	require.NoError(t, w.s[last].Close(time.Minute))
	w.c, w.s = w.c[:last], w.s[:last]
}

// open opens one more stream, and returns a function that waits for it.
func (w *crowd) open(t *testing.T) (finish func()) {
	opened := make(chan error, 1)
	go func() {
		client, err := w.c[0].link.Open(context.Background())
		w.c = append(w.c, client)
		opened <- err
	}()
	return func() {
		t.Helper()
		require.NoError(t, <-opened)
		w.s = append(w.s, w.b.accept())
	}
}

func TestNobodyElseWaitsForMemoryThatIsRegistered(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, w *crowd) (d slowDevice, finish func()){
		"a ring grows": func(t *testing.T, w *crowd) (slowDevice, func()) {
			d := slowly(w.n, w.s[0].link)
			drain := fill(t, w.c[0], w.s[0])
			return d, func() {
				time.Sleep(time.Second)
				require.Equal(t, eagerRing, w.s[0].ringSize())
				drain()
			}
		},
		"a stream is dialed": func(t *testing.T, w *crowd) (slowDevice, func()) {
			d := slowly(w.n, w.c[0].link)
			return d, w.open(t)
		},
		"a stream is accepted": func(t *testing.T, w *crowd) (slowDevice, func()) {
			d := slowly(w.n, w.s[0].link)
			return d, w.open(t)
		},
		"a buffer is made": func(t *testing.T, w *crowd) (slowDevice, func()) {
			d := slowly(w.n, w.c[0].link)
			made := make(chan error, 1)
			go func() {
				buffer, err := w.c[0].NewBuffer(1 << 20)
				if err == nil {
					buffer.Close()
				}
				made <- err
			}()
			return d, func() { require.NoError(t, <-made) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				w := newCrowd(t, n, testConfig)
				d, finish := begin(t, w)
				<-d.begun
				synctest.Wait()
				func() {
					defer d.finish(nil)
					requireFree(t, w.c[1], w.s[1])
					w.closeLast(t)
				}()
				finish()
				w.close(t)
			})
		})
	}
}

// A link that loses its queue pair takes with it what it was about to register; if that has
// failed, the memory is registered with the next device.
func TestALinkMovesWhoseMemoryIsBeingRegistered(t *testing.T) {
	for name, result := range map[string]error{"and is registered": nil, "and fails": fabric.ErrDeviceRemoved} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				w := newCrowd(t, n, resuming(n))
				d := slowly(n, w.s[0].link)
				drain := fill(t, w.c[0], w.s[0])
				<-d.begun
				finish := w.open(t)
				time.Sleep(time.Second)
				endpointOf(w.c[0].link).Fail(fabric.ErrQueuePair)
				time.Sleep(time.Second)
				require.True(t, w.s[0].link.Info().Seeking)
				d.finish(result)
				require.Less(t, requireEcho(t, w.c[1], w.s[1]), 10*time.Second)
				require.EqualValues(t, 1, w.s[0].link.Info().Moves)
				finish()
				time.Sleep(time.Second)
				require.Equal(t, eagerRing, w.s[0].ringSize())
				drain()
				w.close(t)
			})
		})
	}
}

// What could not be registered is not counted, and a ring that did not grow grows later.
func TestARingGrowsLaterWhoseMemoryCouldNotBeRegistered(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		w := newCrowd(t, n, testConfig)
		l := w.s[0].link
		_, before := l.registeredBytes()
		d := slowly(n, l)
		drain := fill(t, w.c[0], w.s[0])
		<-d.begun
		_, meanwhile := l.registeredBytes()
		require.Greater(t, meanwhile, before, "it is reserved first")
		d.finish(syscall.ENOMEM)
		time.Sleep(time.Second)
		_, after := l.registeredBytes()
		require.Equal(t, before, after)
		require.Equal(t, firstRing, w.s[0].ringSize())
		drain()
		drain = fill(t, w.c[0], w.s[0])
		time.Sleep(time.Second)
		require.Equal(t, eagerRing, w.s[0].ringSize())
		drain()
		w.close(t)
	})
}

// A dial gives up while the memory for its ring is being registered, and nobody else wants that. None of
// it stays.
func TestADialThatGivesUpLeavesNoMemory(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		w := newCrowd(t, n, testConfig)
		l := w.c[0].link
		time.Sleep(3 * l.shrinkAfter())
		before := l.Info().Memory
		d := slowly(n, l)
		ctx, giveUp := context.WithCancel(context.Background())
		dial := dialing(ctx, l)
		<-d.begun
		giveUp()
		require.ErrorIs(t, (<-dial).err, context.Canceled)
		d.finish(nil)
		time.Sleep(3 * l.shrinkAfter())
		require.Equal(t, before, l.Info().Memory)
		w.close(t)
	})
}

// addFreeSlab registers a slab more for a link. Called with mu held.
func addFreeSlab(t *testing.T, l *Link) {
	require.NoError(t, l.memory.account.Reserve(slabSize))
	memory, err := l.register(slabSize, fabric.RemoteWrite)
	require.NoError(t, err)
	l.m.Rings().Add(memory, slabSize, false)
}

// addSlabs registers so many slabs more for a link, all of which are taken.
func addSlabs(t *testing.T, l *Link, many int) {
	l.lock()
	defer l.unlock()
	for range many {
		addFreeSlab(t, l)
		_, lacks := l.m.Rings().Take(slabSize)
		require.Zero(t, lacks)
	}
}

// Devices may take seconds over much memory, or over saying that they are there. Nobody
// else waits for that.

// isHeld reports whether the lock of a link is held, and not just for a moment.
func isHeld(l *Link) bool {
	for range 100_000 {
		if l.mu.TryLock() {
			l.unlock()
			return false
		}
		runtime.Gosched()
	}
	return true
}

// TestNobodyWaitsForADeviceThatRegisters has a link lose its queue pair whose memory takes
// its device a second for each piece, and buffers of its closed meanwhile.
func TestNobodyWaitsForADeviceThatRegisters(t *testing.T) {
	resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
		buffers := make(chan *Buffer, 2)
		for range cap(buffers) {
			b, err := c.NewBuffer(4096)
			require.NoError(t, err)
			buffers <- b
		}
		var held, registered atomic.Int32
		n.SetFaults(sim.Faults{Register: func(*sim.Endpoint, int) error {
			registered.Add(1)
			for _, l := range []*Link{c.link, s.link} {
				if isHeld(l) {
					held.Add(1)
				}
			}
			time.Sleep(time.Second / 2)
			select {
			case b := <-buffers:
				go b.Close()
			default:
			}
			time.Sleep(time.Second / 2)
			return nil
		}})
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		requireEcho(t, c, s)
		n.SetFaults(sim.Faults{})
		require.Greater(t, registered.Load(), int32(4), "both sides' memory")
		require.Zero(t, held.Load(), "calls of the link's streams would have had to wait")
	})
}
