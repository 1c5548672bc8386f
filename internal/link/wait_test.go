package link

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// flooded is an endpoint whose completion queue is never empty: the peer sends
// link credit that nobody has earned.
type flooded struct {
	fabric.Endpoint
	polls, wakes int
}

func (e *flooded) Poll(c []fabric.Completion) (int, error) {
	e.polls++
	for i := range c {
		c[i] = fabric.Completion{Recv: true, Op: fabric.Send, Data: make([]byte, wire.HeaderSize)}
	}
	return len(c), nil
}

func (e *flooded) PostRecv(int) error                  { return nil }
func (e *flooded) PostSend([]fabric.WorkRequest) error { return nil }
func (e *flooded) Arm() error                          { return nil }
func (e *flooded) Disconnect() error                   { return nil }
func (e *flooded) RingDue() bool                       { return false }
func (e *flooded) Wake()                               { e.wakes++ }

// noMemory is memory for control messages alone.
type noMemory struct{ fabric.Memory }

func (noMemory) Bytes() []byte { return make([]byte, machine.ControlMemory+1) }

// newMachine is one with nothing to do.
func newMachine() *machine.Link {
	m := machine.New(machine.Config{RecvQueue: 256, SendQueue: 256, SendBuffer: 1, FirstStaging: 1}, noMemory{}, time.Now)
	m.Hear(wire.Hello{Receives: 256}, wire.RingPlace{})
	return m
}

// A peer cannot have the lock held by sending without end: a look takes so much
// and leaves the rest to the engine, which takes the lock anew.
func TestALookAtAFloodHasAnEnd(t *testing.T) {
	for name, look := range map[string]func(l *Link){
		"a call's":      func(l *Link) { l.pollCompletions(); l.unlock(); l.lock() },
		"the watcher's": func(l *Link) { l.sleep(nil, engineCall, nil) },
		"the timer's":   func(l *Link) { l.unlock(); l.watchTick(); l.lock() },
	} {
		t.Run(name, func(t *testing.T) {
			e := &flooded{}
			l := &Link{ep: e, life: life{gone: make(chan struct{})}, m: newMachine()}
			l.m.Own()
			l.timer, l.watch.timer, l.watch.given = time.NewTimer(time.Hour), time.NewTimer(time.Hour), make(chan struct{}, 1)
			*at[int](l.m, "qp.posted") = 1 << 30
			l.lock()
			defer l.unlock()
			look(l)
			require.LessOrEqual(t, e.polls, 2*maxPolls)
			require.Equal(t, &engine, l.watch.holder, "somebody goes on with what was left")
		})
	}
}

// The peer begins streams one after the other, and nobody reads on from them, so that
// each of its messages finds the queue left to the timer, until that has been seen.
func TestMessagesThatLieUnnoticedHaveTheQueueWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Spin: 1})
		c, s, b := connectLink(t, n, testConfig, testConfig)
		const streams = 10 * engineFirstFor
		ends := []*Stream{c, s}
		began := time.Now()
		for range streams {
			next, err := c.link.Open(t.Context())
			require.NoError(t, err)
			server := b.accept()
			ends = append(ends, server, next)
			go server.Read(make([]byte, 1), deadline.New())
			synctest.Wait() // it is parked, and will be woken
			require.NoError(t, writeAll(next, []byte("x")))
			synctest.Wait()
		}
		require.LessOrEqual(t, time.Since(began), 2*(streams/engineFirstFor+1)*2*watchWithin, "both ends")
		endAll(t, n, ends...)
	})
}

// A call that polls for as long as Config.BusyPoll says notices what becomes of the connection
// meanwhile, which no completion tells.
func TestACallThatPollsForLongNoticesThatThePeerHasGone(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // with one processor no call polls
	for name, open := range map[string]func() (fabric.Fabric, error){
		"sim": func() (fabric.Fabric, error) { return sim.New(sim.Link{Spin: 1}), nil },
		"shm": shm.Fabric,
	} {
		t.Run(name, func(t *testing.T) {
			f, err := open()
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			require.NoError(t, err)
			cfg := testConfig
			cfg.BusyPoll = time.Hour
			c, s, _ := connectLink(t, listensAtLoopback{f}, cfg, testConfig)
			read := make(chan error, 1)
			go func() {
				_, err := c.Read(make([]byte, 1), unlimited())
				read <- err
			}()
			hang.Unless(t, func() bool {
				c.link.lock()
				defer c.link.unlock()
				return c.calls[readCall].parked || c.link.watch.holder == &c.calls[readCall]
			})
			s.link.Abort()
			select {
			case err := <-read:
				require.Equal(t, syscall.ECONNRESET, err)
			case <-time.After(hang.After):
				require.Fail(t, "Read polls on")
			}
			_ = s.Close(0)
			_ = c.Close(0)
			hang.Unless(t, func() bool { return inUse(cfg.Budget) == 0 }, "other tests have this budget, too")
		})
	}
}
