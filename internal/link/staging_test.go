package link

import (
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// fullStaging runs a test with so many streams of a link whose staging memory a Write has filled
// with what it copies, until the test releases it. Nothing that will complete is left on its way.
func fullStaging(t *testing.T, cfg Setup, many int, test func(t *testing.T, clients, servers []*Stream, release func(with func()))) {
	onLink(t, sim.Link{}, cfg, testConfig, many, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		l := clients[0].link
		l.mu.Lock()
		number, _, _ := l.send.staging.take(l.send.staging.ring.Free())
		l.mu.Unlock()
		test(t, clients, servers, func(with func()) {
			l.mu.Lock()
			with()
			taken := l.send.staging.chunk(number)
			taken.copying, taken.from = false, taken.to
			l.freeStaging()
			l.wakeTouched()
			l.mu.Unlock()
			synctest.Wait()
		})
		for _, s := range slices.Concat(clients, servers) {
			_ = s.Close(0)
		}
	})
}

// writing has streams write, and returns what they return.
func writing(n int, streams ...*Stream) <-chan error {
	written := make(chan error, len(streams))
	for _, s := range streams {
		go func() { written <- writeAll(s, make([]byte, n)) }()
		synctest.Wait()
	}
	return written
}

// writeInTime writes within a time that is over.
func writeInTime(s *Stream) error {
	soon := deadline.New()
	soon.Set(time.Now().Add(time.Microsecond))
	_, err := s.Write(make([]byte, 4<<10), soon)
	return err
}

// The stream comes to its end whose Write has filled the staging memory, with all that this has
// to send.
func TestStagingMemoryThatIsNotUsedAfterAllIsForThoseWhoWait(t *testing.T) {
	fullStaging(t, testConfig, 2, func(t *testing.T, clients, servers []*Stream, release func(func())) {
		written := writing(4<<10, clients[0])
		require.NoError(t, servers[1].Close(0))
		synctest.Wait()
		require.Empty(t, written)
		l, s := clients[1].link, clients[1]
		l.mu.Lock()
		accepted, err := s.staged(l.send.staging.first, l.send.staging.ring.Size())
		l.mu.Unlock()
		require.Error(t, err)
		require.Zero(t, accepted)
		synctest.Wait()
		require.Len(t, written, 1, "the other Write still waits")
	})
}

// Those that are woken first do not use the memory after all: their deadlines have passed, or what
// they write goes inline by then. The others have to have it.
func TestStagingMemoryThatTheFirstDoNotUseIsForTheNextWhoWait(t *testing.T) {
	const each = 40
	for name, first := range map[string]func(s *Stream) error{
		"deadlines pass": writeInTime,
		"inline":         func(s *Stream) error { return writeAll(s, make([]byte, 100)) },
	} {
		t.Run(name, func(t *testing.T) {
			fullStaging(t, testConfig, 2*each, func(t *testing.T, clients, _ []*Stream, release func(func())) {
				l := clients[0].link
				l.mu.Lock()
				l.send.posting = true // or nothing would keep from sending inline
				l.mu.Unlock()
				for _, s := range clients[:each] {
					go first(s)
				}
				synctest.Wait()
				written := writing(4<<10, clients[each:]...)
				time.Sleep(time.Millisecond)
				release(func() { l.send.posting = false })
				require.Len(t, written, each, "some Writes still wait")
			})
		})
	}
}

// The first in line has no room at the peer any more when there is some: it takes none.
func TestStagingMemoryIsNotForAWriteWithoutRoomAtThePeer(t *testing.T) {
	small := testConfig
	small.SendBuffer = worthwhile
	fullStaging(t, small, 2, func(t *testing.T, clients, _ []*Stream, release func(func())) {
		writing(8<<10, clients[0])
		written := writing(8<<10, clients[1])
		release(func() { clients[0].ledger.Accept(clients[0].ledger.Space()) })
		require.Len(t, written, 1, "the next in line still waits")
	})
}

// Writes wait, and some give up and come again. Each stream has one place in the line, and keeps it.
func TestAWriteThatComesAgainKeepsItsTurnForStagingMemory(t *testing.T) {
	fullStaging(t, testConfig, 3, func(t *testing.T, clients, _ []*Stream, release func(func())) {
		writing(8<<10, clients[0])
		for range 3 {
			require.ErrorIs(t, writeInTime(clients[1]), os.ErrDeadlineExceeded)
			require.ErrorIs(t, writeInTime(clients[2]), os.ErrDeadlineExceeded)
		}
		written := writing(8<<10, clients[2], clients[1])
		release(func() { require.True(t, slices.Equal(clients, clients[0].link.send.stagingLine.items)) })
		require.Len(t, written, 2)
	})
}

// What is sent last need not be signaled, and may hold a lot of staging memory: that
// of small Writes which share its chunk. Whoever lacks it has something sent whose completion
// frees it.
func TestStagingMemoryThatNothingUnderWayWouldFreeIsFreed(t *testing.T) {
	cfg := testConfig
	cfg.SendBuffer = 16 << 10
	onLink(t, sim.Link{}, cfg, testConfig, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		l, other := clients[0].link, clients[1]
		l.mu.Lock()
		l.send.posting = true // or it would be sent sooner
		l.mu.Unlock()
		for range 15 << 10 / 64 {
			require.NoError(t, writeAll(clients[0], make([]byte, 64)))
		}
		l.mu.Lock()
		l.send.posting = false
		l.trySend()
		l.mu.Unlock()
		synctest.Wait()

		l.mu.Lock()
		other.sentSinceReceive = burst // so it leaves some to conversations
		require.Zero(t, other.stagingRoom(worthwhile))
		require.Equal(t, 1, l.send.slots.Unsignaled())
		l.mu.Unlock()
		require.Len(t, writing(2<<10, other), 1, "the Write waits for what never comes")
		for _, s := range slices.Concat(clients, servers) {
			require.NoError(t, s.Close(0))
		}
	})
}
