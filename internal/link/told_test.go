package link

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// Each who asks to be told of a link's end, or that it goes on, is told, whoever else asks.
func TestALinkTellsAllWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		clients, servers := streamsOfBoth(t, n, resuming(n), resuming(n), 1)
		told := make(map[string]int)
		calls := make(chan string, 100)
		l := clients[0].link
		ask := func() {
			l.OnEnd(func() { calls <- "end" })
			l.OnDown(func(error) { calls <- "down" })
			l.OnMove(func(Info, time.Duration, error) { calls <- "move" })
		}
		ask()
		ask()
		endpointOf(l).Fail(fabric.ErrQueuePair)
		require.NoError(t, exchange(clients[0], servers[0], 1<<20, 1))
		endAll(t, n, clients[0], servers[0])
		synctest.Wait()
		ask() // too late for what comes no more
		synctest.Wait()
		close(calls)
		for call := range calls {
			told[call]++
		}
		require.Equal(t, map[string]int{"end": 3, "down": 3, "move": 2}, told)
	})
}

// awaited is an endpoint with an event.
type awaited struct {
	flooded
}

func (e *awaited) Wait() error { return nil }

// A deadline that is still ahead when a wait is over does not keep the endpoint, nor wake it.
func TestADeadlineForgetsAWaitThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := new(awaited), deadline.New()
		l := &Link{ep: e, m: newMachine()}
		d.Set(time.Now().Add(time.Hour))
		l.lock()
		require.True(t, l.await(d))
		l.unlock()
		time.Sleep(2 * time.Hour)
		require.True(t, d.Expired())
		require.Zero(t, e.wakes)
	})
}
