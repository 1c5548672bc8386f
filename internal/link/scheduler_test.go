package link

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// linksOfBoth makes so many links with a stream each.
func linksOfBoth(t *testing.T, n fabric.Fabric, active, passive Setup, many int) (clients, servers []*Stream) {
	for range many {
		c, s, _ := connectLink(t, n, active, passive)
		clients, servers = append(clients, c), append(servers, s)
	}
	return clients, servers
}

// howManySeek is how many of the links have no queue pair.
func howManySeek(streams []*Stream) (n int) {
	for _, s := range streams {
		if s.link.Info().Seeking {
			n++
		}
	}
	return n
}

// TestManyLinksOfAHostThatIsAway has the only cable of many links be out for a while.
func TestManyLinksOfAHostThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const links = 100
		n := sim.New(far)
		clients, servers := linksOfBoth(t, n, resuming(n), resuming(n), links)
		before := n.Open()
		n.Cut(true)
		for _, c := range clients {
			endpointOf(c.link).Fail(fabric.ErrQueuePair)
		}
		for range 2000 {
			time.Sleep(10 * time.Millisecond)
			// The passive side asks, and they are in one process here.
			require.LessOrEqual(t, n.Open(), before+2*attemptsToHost)
		}
		require.Equal(t, links, howManySeek(clients))
		n.Cut(false)
		time.Sleep(2 * longAttempt)
		require.Zero(t, howManySeek(clients))
		require.Zero(t, howManySeek(servers))
		endAll(t, n, append(clients, servers...)...)
	})
}

// TestManyLinksOfACardThatIsGone has the card die that many links came by: where one has
// gone the others follow.
func TestManyLinksOfACardThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		active, passive, dialer := twoCards(n)
		clients, servers := linksOfBoth(t, dialer, active, passive, 100)
		n.CutCard(server1, true)
		for _, c := range clients {
			endpointOf(c.link).Fail(fabric.ErrQueuePair)
		}
		time.Sleep(attemptTime / 2)
		require.Zero(t, howManySeek(clients))
		endAll(t, n, append(clients, servers...)...)
	})
}

// state is how many attempts are under way.
func (s *retryScheduler) state() (underWay int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underWay
}

// TestTurnsAreFair has attempts to one host, which are never answered, be in no other's way,
// and each link of it have its turn.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all retryScheduler
		dead, alive := all.join(client1), all.join(server1)
		order := make(chan int, 100)
		for i := range cap(order) {
			go func() {
				own := all.take(context.Background(), dead, 1)
				order <- i
				time.Sleep(time.Second)
				all.give(own, unanswered)
			}()
			synctest.Wait()
		}
		all.give(all.take(context.Background(), alive, 1), answered)

		impatient, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		require.Nil(t, all.take(impatient, dead, 1))
		time.Sleep(time.Minute)
		for i := range cap(order) {
			require.Equal(t, i/attemptsToHost, <-order/attemptsToHost, "those of a second come in any order")
		}
		require.Zero(t, all.state())
		all.leave(dead)
		all.leave(alive)
		require.Empty(t, all.hosts)
	})
}

// TestAProcessThatStandsStillHoldsUpNoOther has many links to one port of a host never be
// answered.
func TestAProcessThatStandsStillHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all retryScheduler
		host := all.join(server1)
		ctx, cancel := context.WithCancel(context.Background())
		for range 100 {
			go func() {
				for ctx.Err() == nil {
					if own := all.take(ctx, host, 1); own != nil {
						time.Sleep(longAttempt)
						all.give(own, unanswered)
					}
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		var others sync.WaitGroup
		for range attemptsToHost {
			others.Go(func() { all.give(all.take(ctx, host, 2), answered) })
		}
		others.Wait()
		require.LessOrEqual(t, time.Since(began), longAttempt)
		cancel()
		time.Sleep(2 * longAttempt)
		require.Zero(t, all.state())
	})
}

// TestTurnsOfManyHosts has more hosts seek than there are turns.
func TestTurnsOfManyHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all retryScheduler
		for i := range 2 * attemptsAtOnce {
			go func() {
				h := all.join(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
				defer all.leave(h)
				own := all.take(context.Background(), h, 1)
				time.Sleep(time.Second)
				all.give(own, unanswered)
			}()
		}
		for _, underWay := range []int{attemptsAtOnce, attemptsAtOnce, 0} {
			time.Sleep(700 * time.Millisecond)
			require.Equal(t, underWay, all.state())
		}
		require.Empty(t, all.hosts)
	})
}

// TestTheCardsOfBeforeAreTriedAgainAndAgain has all cards of two hosts with many be out,
// and only those be back that the link was on.
func TestTheCardsOfBeforeAreTriedAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 8
		n := sim.New(far)
		var hosts [2][]fabric.Card
		for i := range many {
			for side := range hosts {
				hosts[side] = append(hosts[side], fabric.Card{netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", i, 1+side))})
			}
		}
		server, client := n.Host(hosts[0]...), n.Host(hosts[1]...)
		active, passive := resuming(client), resuming(server)
		active.ResumeTimeout, passive.ResumeTimeout = 10*time.Minute, 10*time.Minute
		c, s, _ := connectLink(t, client, active, passive)
		for _, card := range hosts[0] {
			n.CutCard(card[0], true)
		}
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		time.Sleep(5 * time.Minute)
		n.CutCard(server1, false)
		time.Sleep((othersBetween + 1) * longAttempt)
		require.EqualValues(t, 1, c.link.Info().Moves)
		endAll(t, n, c, s)
	})
}

// TestATurnForAnotherRouteThanOneJustFound has a route be found when another turn's was
// chosen, and has not begun.
func TestATurnForAnotherRouteThanOneJustFound(t *testing.T) {
	var all retryScheduler
	host := all.join(server1)
	good, other := route{client1, netip.AddrPortFrom(server1, 1), true}, route{client2, netip.AddrPortFrom(server1, 1), true}
	routes := []route{other, good}
	first, second := all.take(t.Context(), host, 1), all.take(t.Context(), host, 2)
	begin := func(own *turn, r route) error {
		attempt, cancel := all.begin(t.Context(), own, r.cards(), longAttempt)
		t.Cleanup(cancel)
		return attempt.Err()
	}
	_, ok := all.found(second, routes)
	require.False(t, ok)
	require.NoError(t, begin(first, good))
	all.give(first, answered)
	require.ErrorIs(t, begin(second, other), context.Canceled)
	all.give(second, unanswered)

	third := all.take(t.Context(), host, 2)
	r, ok := all.found(third, routes)
	require.True(t, ok)
	require.Equal(t, good, r)
	require.NoError(t, begin(third, other), "was chosen knowing of the one that was found")
	all.give(third, unanswered)
}
