package link

import (
	"context"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A Write fills the staging memory with what it copies, and meanwhile its stream
// comes to its end, with all that this has to send. Another stream's Write waits
// for the memory, and nothing that will complete is left on its way.
func TestStagingMemoryThatIsNotUsedAfterAllIsForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, b := connectLink(t, sim.New(sim.Link{}), testConfig, testConfig)
		l := c.Link()
		copying, err := l.Open(context.Background())
		require.NoError(t, err)
		server := b.accept()

		l.mu.Lock()
		n := l.send.staging.ring.Free()
		number, _, _ := l.send.staging.take(n)
		l.mu.Unlock()
		written := make(chan error, 1)
		go func() { written <- writeAll(c, make([]byte, 4<<10)) }()
		require.NoError(t, server.Close(0))
		synctest.Wait()
		require.Empty(t, written)

		l.mu.Lock()
		accepted, err := copying.staged(number, n)
		l.mu.Unlock()
		require.Error(t, err)
		require.Zero(t, accepted)
		synctest.Wait()
		require.Len(t, written, 1, "the other Write still waits")
		require.NoError(t, <-written)

		require.NoError(t, copying.Close(time.Second))
		require.NoError(t, c.Close(0))
		require.NoError(t, s.Close(0))
		time.Sleep(time.Minute)
	})
}

// Writes wait for staging memory, and those that are woken first do not use it
// after all: their deadlines have passed, or what they write goes inline by then.
// The others have to have it.
func TestStagingMemoryThatTheFirstDoNotUseIsForTheNextWhoWait(t *testing.T) {
	for name, first := range map[string]func(s *Stream) error{
		"deadlines pass": func(s *Stream) error {
			soon := deadline.New()
			soon.Set(time.Now().Add(time.Microsecond))
			_, err := s.Write(make([]byte, 4<<10), soon)
			return err
		},
		"inline": func(s *Stream) error { return writeAll(s, make([]byte, 100)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s, b := connectLink(t, sim.New(sim.Link{}), testConfig, testConfig)
				l := c.Link()
				const each = 40
				var streams, servers []*Stream
				for range 2 * each {
					s, err := l.Open(context.Background())
					require.NoError(t, err)
					streams, servers = append(streams, s), append(servers, b.accept())
				}

				l.mu.Lock()
				l.send.posting = true // or nothing would keep from sending inline
				number, _, _ := l.send.staging.take(l.send.staging.ring.Free())
				l.mu.Unlock()
				written := make(chan error, 2*each)
				for _, s := range streams[:each] {
					go func() { written <- first(s) }()
				}
				synctest.Wait()
				for _, s := range streams[each:] {
					go func() { written <- writeAll(s, make([]byte, 4<<10)) }()
				}
				time.Sleep(time.Millisecond)

				l.mu.Lock()
				l.send.posting = false
				taken := l.send.staging.chunk(number)
				taken.copying, taken.from = false, taken.to
				l.freeStaging()
				l.wakeTouched()
				l.mu.Unlock()
				synctest.Wait()
				require.Len(t, written, 2*each, "some Writes still wait")

				for _, s := range slices.Concat(streams, servers, []*Stream{c, s}) {
					require.NoError(t, s.Close(0))
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// The first in line for staging memory has no room at the peer any more when there is
// some: it takes none, so the next has to have it.
func TestStagingMemoryIsNotForAWriteWithoutRoomAtThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small := testConfig
		small.SendBuffer = worthwhile
		c, s, b := connectLink(t, sim.New(sim.Link{}), small, testConfig)
		l := c.Link()
		next, err := l.Open(context.Background())
		require.NoError(t, err)
		server := b.accept()

		l.mu.Lock()
		number, _, _ := l.send.staging.take(l.send.staging.ring.Free())
		l.mu.Unlock()
		never := make(chan error, 1)
		go func() { never <- writeAll(c, make([]byte, 8<<10)) }()
		synctest.Wait()
		written := make(chan error, 1)
		go func() { written <- writeAll(next, make([]byte, 8<<10)) }()
		synctest.Wait()

		l.mu.Lock()
		c.ledger.Accept(c.ledger.Space())
		taken := l.send.staging.chunk(number)
		taken.copying, taken.from = false, taken.to
		l.freeStaging()
		l.wakeTouched()
		l.mu.Unlock()
		synctest.Wait()
		require.Len(t, written, 1, "the next in line still waits")

		for _, end := range []*Stream{c, s, next, server} {
			require.NoError(t, end.Close(0))
		}
		require.Error(t, <-never)
		time.Sleep(time.Hour)
	})
}

// Writes wait for staging memory, and some give up and come again. Each stream has
// one place in the line, and keeps it.
func TestAWriteThatComesAgainKeepsItsTurnForStagingMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, b := connectLink(t, sim.New(sim.Link{}), testConfig, testConfig)
		l := c.Link()
		clients, servers := []*Stream{c}, []*Stream{s}
		for range 2 {
			s, err := l.Open(context.Background())
			require.NoError(t, err)
			clients, servers = append(clients, s), append(servers, b.accept())
		}
		l.mu.Lock()
		number, _, _ := l.send.staging.take(l.send.staging.ring.Free())
		l.mu.Unlock()
		written := make(chan error, len(clients))
		write := func(s *Stream) {
			go func() { written <- writeAll(s, make([]byte, 8<<10)) }()
			synctest.Wait()
		}
		write(clients[0])
		for range 3 {
			for _, s := range clients[1:] {
				until := deadline.New()
				until.Set(time.Now().Add(time.Second))
				_, err := s.Write(make([]byte, 8<<10), until)
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
		}
		write(clients[2])
		write(clients[1])

		l.mu.Lock()
		require.True(t, slices.Equal(clients, l.send.stagingLine.items))
		taken := l.send.staging.chunk(number)
		taken.copying, taken.from = false, taken.to
		l.freeStaging()
		l.wakeTouched()
		l.mu.Unlock()
		for range clients {
			require.NoError(t, <-written)
		}
		for _, s := range slices.Concat(clients, servers) {
			require.NoError(t, s.Close(0))
		}
		time.Sleep(time.Hour)
	})
}

// What is sent last need not be signaled, and may hold a lot of staging memory: that
// of small Writes which share its chunk, or that behind it, whose bytes have been sent
// before. Whoever lacks it has something sent whose completion frees it.
func TestStagingMemoryThatNothingUnderWayWouldFreeIsFreed(t *testing.T) {
	fill := func(t *testing.T, s *Stream, n, each int) {
		for range n / each {
			require.NoError(t, writeAll(s, make([]byte, each)))
		}
	}
	for name, send := range map[string]func(t *testing.T, first, second *Stream){
		"one chunk is sent in parts": func(t *testing.T, first, _ *Stream) {
			l := first.link
			l.mu.Lock()
			l.send.posting = true // or it would be sent sooner
			l.mu.Unlock()
			fill(t, first, 15<<10, 64)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.send.posting = false
			l.trySend()
		},
		"the first chunk is sent last": func(t *testing.T, first, second *Stream) {
			l := first.link
			l.mu.Lock()
			l.send.posting, first.sentSinceReceive = true, burst
			l.mu.Unlock()
			fill(t, first, 1<<10, 64)
			l.mu.Lock()
			l.send.posting = false
			waiting := l.send.withData.pop() // or it would be sent with second's
			l.mu.Unlock()
			fill(t, second, 14<<10, 1<<10)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.probe() // all of second's is freed with it, but for its place
			l.pollAndSend()
			l.send.withData.push(waiting)
			l.trySend()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := testConfig
				cfg.SendBuffer = 16 << 10
				c, s, b := connectLink(t, sim.New(sim.Link{}), cfg, testConfig)
				other, err := c.link.Open(context.Background())
				require.NoError(t, err)
				streams := []*Stream{c, s, other, b.accept()}
				send(t, c, other)
				synctest.Wait()

				c.link.mu.Lock()
				other.sentSinceReceive = burst // so it leaves some to conversations
				require.Zero(t, other.stagingRoom(worthwhile))
				require.Equal(t, 1, c.link.send.slots.Unsignaled())
				c.link.mu.Unlock()
				written := make(chan error, 1)
				go func() { written <- writeAll(other, make([]byte, 2<<10)) }()
				synctest.Wait()
				require.Len(t, written, 1, "the Write waits for what never comes")
				require.NoError(t, <-written)
				for _, s := range streams {
					require.NoError(t, s.Close(0))
				}
				time.Sleep(time.Hour)
			})
		})
	}
}
