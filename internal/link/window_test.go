package link

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// Bulk in one direction delays a message of a conversation by one message of bulk,
// of the largest size, whatever it has of staging memory and however many streams
// carry it; and what is more than fits inline by one more, since it goes together
// with what is written until the stream's message before it is through. Bulk has
// the rest of the bandwidth.
func TestBulkDelaysAConversationByOneMessage(t *testing.T) {
	network := sim.Link{Latency: 10 * time.Microsecond, Bandwidth: 1 << 30}
	const message = minWindow * time.Second / (1 << 30)
	for _, conversation := range []struct {
		size int
		most time.Duration
	}{
		{64, message},
		{1000, 2 * message},
	} {
		for _, streams := range []int{1, 16} {
			t.Run(fmt.Sprintf("%d bytes beside %d", conversation.size, streams), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := sim.New(network)
					c, s, b := connectLink(t, n, testConfig, testConfig)
					alone := pingPong(t, c, s, conversation.size, 200)
					stop := startBulk(t, c.Link(), b, streams)
					time.Sleep(50 * time.Millisecond) // until their rings have grown
					pingPong(t, c, s, conversation.size, 50)
					received, start := receivedOn(s.Link()), time.Now()
					beside := pingPong(t, c, s, conversation.size, 200)
					share := float64(receivedOn(s.Link())-received) / time.Since(start).Seconds() / float64(network.Bandwidth)
					require.Less(t, beside-alone, conversation.most, "99 of 100")
					require.Greater(t, share, 0.9)
					stop()
					endAll(t, n, c, s)
				})
			})
		}
	}
}

// pingPong sends messages to and fro, with pauses, and says how long 99 of 100
// take at most.
func pingPong(t *testing.T, c, s *Stream, size, times int) time.Duration {
	t.Helper()
	go func() {
		b := make([]byte, size)
		for range times {
			_, _ = io.ReadFull(reader{s}, b)
			_ = writeAll(s, b)
		}
	}()
	b := make([]byte, size)
	var took []time.Duration
	for range times {
		start := time.Now()
		require.NoError(t, writeAll(c, b))
		_, err := io.ReadFull(reader{c}, b)
		require.NoError(t, err)
		took = append(took, time.Since(start))
		time.Sleep(137 * time.Microsecond)
	}
	slices.Sort(took)
	return took[times*99/100]
}

type reader struct{ *Stream }

func (r reader) Read(p []byte) (int, error) { return r.Stream.Read(p, deadline.New()) }

// startBulk sends without end on so many streams, until it is stopped.
func startBulk(t *testing.T, l *Link, b *backlog, streams int) (stop func()) {
	t.Helper()
	ended := make(chan struct{})
	until := deadline.New()
	for range streams {
		c, err := l.Open(context.Background())
		require.NoError(t, err)
		s := b.accept()
		go func() {
			for p := make([]byte, 1<<20); ; {
				if _, err := c.Write(p, until); err != nil {
					break
				}
			}
			_ = c.Close(time.Second)
		}()
		go func() {
			_, _ = io.Copy(io.Discard, reader{s})
			_ = s.Close(time.Second)
			ended <- struct{}{}
		}()
	}
	return func() {
		until.Set(time.Now())
		for range streams {
			<-ended
		}
	}
}

// receivedOn is how many bytes the streams of a link have received.
func receivedOn(l *Link) (bytes uint64) {
	l.lock()
	defer l.unlock()
	for _, s := range l.m.Streams() {
		bytes += s.Stats().BytesReceived
	}
	return bytes
}

// What a stream has written waits behind the bulk of others. Then it has an answer,
// and so is in a conversation, whose messages wait for no bulk.
func TestAConversationDoesNotOvertakeItself(t *testing.T) {
	onLink(t, sim.Link{Latency: time.Millisecond}, testConfig, testConfig, 25, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		c, s, l := clients[0], servers[0], clients[0].link
		for range burst { // so that they are in none
			for _, c := range clients {
				require.NoError(t, writeAll(c, []byte("-")))
			}
			time.Sleep(5 * time.Millisecond)
		}
		require.NoError(t, writeAll(s, []byte("answer")))
		time.Sleep(time.Millisecond / 2)
		for _, other := range clients[1:] {
			require.NoError(t, writeAll(other, make([]byte, 15<<10)))
		}
		first := bytes.Repeat([]byte{1}, 2*copyLocked)
		require.NoError(t, writeAll(c, first))
		synctest.Wait()
		l.lock()
		pending := c.m.Unsent()
		l.unlock()
		require.Equal(t, len(first), pending)
		require.NoError(t, writeAll(c, []byte("+"))) // is no bulk, and could go at once
		time.Sleep(time.Millisecond)
		require.NoError(t, writeAll(c, []byte("second")))

		got := make([]byte, burst+len(first)+len("+second"))
		_, err := io.ReadFull(reader{s}, got)
		require.NoError(t, err)
		require.Equal(t, "---"+string(first)+"+second", string(got))
	})
}

// What completes is polled, and each costs the card and the processor as much as a message that arrives. So of what a
// stream sends every 32 KiB at least is signaled, beside conversations, or 256 KiB, where it is alone; and
// CREDITs half as often as they are sent.
func TestFewRequestsAreSignaled(t *testing.T) {
	for size, most := range map[int]float64{64: 0.2, 4 << 10: 0.4, 64 << 10: 0.27} {
		onLink(t, sim.Link{Latency: 2 * time.Microsecond, Bandwidth: 1 << 33}, testConfig, testConfig, 16, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
			part := func(l *Link, count func()) float64 {
				before := l.Info()
				count()
				after := l.Info()
				return float64(after.Signaled-before.Signaled) / float64(after.WorkRequests-before.WorkRequests)
			}
			send := func() {
				var all sync.WaitGroup
				for i := range clients {
					all.Go(func() {
						for range 200 {
							assert.NoError(t, writeAll(clients[i], make([]byte, size)))
						}
					})
					all.Go(func() {
						_, err := io.ReadFull(reader{servers[i]}, make([]byte, 200*size))
						assert.NoError(t, err)
					})
				}
				all.Wait()
			}
			send() // so that memory has grown
			var answers float64
			require.LessOrEqual(t, part(clients[0].link, func() { answers = part(servers[0].link, send) }), most, "%d bytes", size)
			if size == 64<<10 {
				require.LessOrEqual(t, answers, 0.5)
			}
			closeAtOnce(clients, servers)
		})
	}
}
