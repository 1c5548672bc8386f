package link

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// sharers are streams that share a link whose queues have the given depths: conversations,
// which send the next message as soon as the answer to the last has come, a stream of bulk,
// and one that has a lone event now and then.
type sharers struct{ conversations, sendQueue, recvQueue int }

// share is what came of it.
type share struct {
	messages float64       // of bulk, of those of bulk and conversations
	bulk     float64       // bytes a second
	ahead    int           // most messages that left between the Write of an event and the event
	event    time.Duration // longest time from the Write of an event to its Read
}

// TestEveryStreamHasItsShare has streams share a link in virtual time, and prints the table
// of docs/performance.md: the same each time, since goroutines run in order on one processor.
func TestEveryStreamHasItsShare(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	crowds := []int{1, 4, 12, 90}
	if raceEnabled {
		crowds = crowds[2:3] // it takes twenty times as long, and finds nothing in a test on one processor
	}
	for _, queues := range [][2]int{{16, 256}, {128, 64}, {128, 256}} {
		for _, conversations := range crowds {
			with := sharers{conversations, queues[0], queues[1]}
			t.Run(fmt.Sprintf("%+v", with), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := sim.New(sim.Link{Latency: 100 * time.Microsecond, Bandwidth: 1 << 30})
					got, fair := with.share(t, n), 1/float64(conversations+1)
					t.Logf("| %d, %d | %d | %.1f %% | %.1f %% | %.0f MB/s | %d | %v |", with.sendQueue, with.recvQueue,
						conversations, 100*fair, 100*got.messages, got.bulk/1e6, got.ahead, got.event.Round(10*time.Microsecond))
					require.GreaterOrEqual(t, got.messages, 0.98*fair, "which messages under way at the ends blur")
					require.LessOrEqual(t, got.ahead, conversations+1, "one message of each other stream")
					time.Sleep(2 * time.Minute)
					require.Zero(t, n.Open(), "endpoints left open")
				})
			})
		}
	}
}

// share runs the streams for a while.
func (w sharers) share(t *testing.T, n *sim.Network) (got share) {
	cfg := testConfig
	cfg.SendQueue, cfg.RecvQueue = w.sendQueue, w.recvQueue
	c, s, b := connectLink(t, n, cfg, cfg)
	until := deadline.New()
	all := []*Stream{c, s}
	open := func() (near, far limited) {
		client, err := c.link.Open(context.Background())
		require.NoError(t, err)
		all = append(all, client, b.accept())
		return limited{client, until}, limited{all[len(all)-1], until}
	}
	for range w.conversations {
		near, far := open()
		go func() { _, _ = io.Copy(far, far) }()
		go func() {
			m := make([]byte, 64)
			for err := error(nil); err == nil; {
				if _, err = near.Write(m); err == nil {
					_, err = io.ReadFull(near, m)
				}
			}
		}()
	}
	bulk, sink := open()
	go func() { _, _ = io.Copy(io.Discard, sink) }()
	go func() {
		for err := error(nil); err == nil; {
			_, err = bulk.Write(make([]byte, 64<<10))
		}
	}()
	sent := func(s *Stream) float64 { return float64(s.Stats().MessagesSent) }
	sentBytes := func(s *Stream) uint64 {
		s.link.lock()
		defer s.link.unlock()
		return (s.m.Stats().BytesWritten - uint64(s.m.Unsent()))
	}
	others := func() float64 { return float64(c.link.Info().MessagesSent) - sent(c) }
	time.Sleep(50 * time.Millisecond) // until rings have grown

	ofBulk, ofAll, bytes, start := sent(bulk.Stream), others(), sentBytes(bulk.Stream), time.Now()
	for range 20 {
		time.Sleep(5137 * time.Microsecond)
		ahead, took := w.event(t, c, s)
		got.ahead, got.event = max(got.ahead, ahead), max(got.event, took)
	}
	got.messages = (sent(bulk.Stream) - ofBulk) / (others() - ofAll)
	got.bulk = float64(sentBytes(bulk.Stream)-bytes) / time.Since(start).Seconds()
	until.Set(time.Now())
	for _, s := range all {
		_ = s.Close(0)
	}
	return got
}

// event writes an event, and says how many messages left before it, and how long it was on
// its way.
func (w sharers) event(t *testing.T, c, s *Stream) (ahead int, took time.Duration) {
	sent, start := c.link.Info().MessagesSent, time.Now()
	require.NoError(t, writeAll(c, []byte("event")))
	limit := deadline.New()
	limit.Set(start.Add(time.Second))
	_, err := io.ReadFull(limited{s, limit}, make([]byte, len("event")))
	require.NoError(t, err)
	return int(s.link.Info().MessagesReceived-sent) - 1, time.Since(start)
}

// limited is a stream whose calls have a deadline.
type limited struct {
	*Stream
	until *deadline.Deadline
}

func (s limited) Read(p []byte) (int, error)  { return s.Stream.Read(p, s.until) }
func (s limited) Write(p []byte) (int, error) { return s.Stream.Write(p, s.until) }
