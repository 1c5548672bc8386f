package rconn

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A call polls, so the dispatcher leaves the completion queue unarmed when it
// is woken. The call polls long enough, sees what it waits for only when it
// looks for the last time before parking, and returns: somebody has to watch
// the queue from then on.
func TestACallThatNeedNotParkAfterAllLeavesTheQueueWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:1"), 1)
		require.NoError(t, err)
		accepted := make(chan *Conn, 1)
		go func() {
			if ep, err := l.Accept(); err == nil {
				s, _ := Server(context.Background(), "rdma", ep, nil)
				accepted <- s
			}
		}()
		ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		c, err := Client(context.Background(), "rdma", ep, &Config{KeepAlive: -1})
		require.NoError(t, err)
		s := <-accepted
		defer func() { l.Close(); c.Close(); s.Close() }()

		time.Sleep(2 * rearmAfter) // or the timer that start sets would save the day
		c.spinners.Add(1)
		_, err = s.Write([]byte("x"))
		require.NoError(t, err)
		synctest.Wait()
		c.spinners.Add(-1)
		require.NoError(t, c.wait(readCall, deadline.New()))

		time.Sleep(2 * rearmAfter)
		_, err = s.Write([]byte("y"))
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 2, c.Stats().BytesReceived)
	})
}
