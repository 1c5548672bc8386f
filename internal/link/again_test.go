package link

import (
	"fmt"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A link that goes on over another queue pair has more to send again than a call posts. What
// others write meanwhile comes behind it.
func TestNothingOvertakesWhatIsSentAgain(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the Writes come before the engine
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: time.Millisecond})
		cfg := resuming(n)
		cfg.SendQueue, cfg.RecvQueue = 1024, 1024
		const late = 20 // streams, of all, that write when the path is lost
		clients, servers := streamsOfBoth(t, n, cfg, cfg, late+10*maxRounds*maxBatch)
		text := func(i int) string { return fmt.Sprintf("to stream %d", i) }
		n.Cut(true)
		for i, c := range clients[late:] {
			require.NoError(t, writeAll(c, []byte(text(late+i))))
		}
		l := clients[0].link
		for l.usable() {
			time.Sleep(cfg.KeepAlive)
		}
		written := make(chan error, late)
		for i, c := range clients[:late] {
			go func() { written <- writeAll(c, []byte(text(i))) }()
		}
		time.Sleep(time.Second)
		n.Cut(false)
		for range late {
			require.NoError(t, <-written)
		}
		require.EqualValues(t, 1, l.Stats().Moves)
		time.Sleep(time.Second)
		for i, s := range servers {
			got := make([]byte, s.Buffered())
			_, _ = s.Read(got, unlimited())
			assert.Equal(t, text(i), string(got))
			require.NoError(t, clients[i].Close(time.Second))
			require.NoError(t, s.Close(time.Second))
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
		require.Zero(t, n.RNR(), "receiver not ready")
	})
}

// A probe that was under way when the path was lost is not sent again, so it says nothing about
// the next queue pair, however long there was none.
func TestAProbeEndsWithItsQueuePair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: 300 * time.Millisecond})
		cfg := resuming(n)
		cfg.AckTimeout, cfg.ResumeTimeout = 4*cfg.AckTimeout, time.Hour
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 1)
		c, s := clients[0], servers[0]
		l := c.link
		n.Cut(true)
		require.NoError(t, writeAll(c, []byte("sent again")))
		for l.Stats().Probes == 0 {
			time.Sleep(cfg.KeepAlive / 2)
		}
		time.Sleep(2 * cfg.ProbeTimeout)
		require.False(t, l.usable())
		n.Cut(false)
		got := make([]byte, len("sent again"))
		_, err := io.ReadFull(reader{s}, got)
		require.NoError(t, err)
		time.Sleep(2 * cfg.ProbeTimeout)
		require.EqualValues(t, 1, l.Stats().Moves)
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
	})
}
