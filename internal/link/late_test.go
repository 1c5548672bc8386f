package link

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// late is an endpoint whose Wait returns only when that is allowed.
type late struct {
	fabric.Endpoint
	allowed chan struct{}
	closed  atomic.Bool
}

func (e *late) Leave(m fabric.Memory) error { return e.Endpoint.(fabric.Mover).Leave(m) }
func (e *late) Adopt(m fabric.Memory) error { return e.Endpoint.(fabric.Mover).Adopt(m) }

func (e *late) Wait() error {
	err := e.Endpoint.Wait()
	<-e.allowed
	return err
}

func (e *late) Close() error {
	e.closed.Store(true)
	return e.Endpoint.Close()
}

// Whoever has the watch gets no processor until the link has gone on over another queue pair. What
// it hears then of the one before says nothing of this one, and the engine closes that before,
// whatever calls wait.
func TestAHolderThatWakesBehindAMove(t *testing.T) {
	for name, holds := range map[string]bool{"the engine": false, "a call": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{Spin: 1})
				cfg := resuming(n)
				c, s, _ := connectLink(t, n, cfg, cfg)
				l := c.link
				l.lock()
				before := l.ep.(*sim.Endpoint)
				e := &late{Endpoint: before, allowed: make(chan struct{})}
				l.ep = e
				if holds {
					l.watch.holder = nil
				}
				l.unlock()
				before.Wake()
				synctest.Wait()
				read := make(chan error)
				go func() {
					_, err := c.Read(make([]byte, 1), unlimited())
					read <- err
				}()
				synctest.Wait()
				l.lock()
				require.Equal(t, holds, l.watch.holder == &c.calls[readCall])
				l.unlock()
				before.Fail(fabric.ErrQueuePair)
				for l.Stats().Moves == 0 {
					l.lock()
					l.pollCompletions()
					l.unlock()
					time.Sleep(time.Second)
				}
				require.False(t, e.closed.Load(), "somebody waits on it")
				close(e.allowed)
				synctest.Wait()
				require.True(t, e.closed.Load())
				time.Sleep(time.Minute)
				require.EqualValues(t, 1, l.Stats().Moves)
				require.NoError(t, writeAll(s, []byte("x")))
				require.NoError(t, <-read)
				endAll(t, n, c, s)
			})
		})
	}
}

// The link has gone on over another queue pair while the engine polled.
func TestTheEngineClosesWhatIsLostBeforeItSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Spin: 1})
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		l := c.link
		l.lock()
		l.watch.holder = nil
		l.ep.Wake()
		l.unlock()
		synctest.Wait() // until the engine waits for the watch
		l.lock()
		l.watch.holder = &engine
		l.path.lost = append(l.path.lost, &sim.Endpoint{})
		ep := l.ep
		l.ep = &late{Endpoint: ep} // whose Wait never returns
		l.sleep(nil, engineCall, nil)
		l.ep, l.path.lost = ep, nil
		l.watch.holder = nil
		l.watchNow()
		l.unlock()
		endAll(t, n, c, s)
	})
}

// Timers that fire late, when what they were set for is over, change nothing.
func TestTimersThatFireLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		cfg := resuming(n)
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 2)
		c, s := clients[0], servers[0]
		require.NoError(t, servers[1].Close(time.Second))
		require.NoError(t, clients[1].Close(time.Second))
		l := c.link
		endpointOf(l).Fail(fabric.ErrQueuePair)
		requireEcho(t, c, s)
		require.EqualValues(t, 1, l.Info().Moves)
		l.lock()
		require.False(t, !field(l.m, "alarms.at").Index(3).IsZero(), "of the queue pair before")
		require.Zero(t, field(l.m, "alarms.closing.len").Int(), "of a stream that is over")
		l.unlock()
		for name, timer := range map[string]func(){
			"of the link":  l.tick,
			"of the watch": l.watchTick,
		} {
			timer()
			requireEcho(t, c, s)
			require.EqualValues(t, 1, l.Info().Moves, name)
		}
		time.Sleep(time.Minute)
		requireEcho(t, c, s)
		require.EqualValues(t, 1, l.Info().Moves)
		endAll(t, n, c, s)
	})
}
