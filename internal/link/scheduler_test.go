package link

import (
	"fmt"
	"net/netip"
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
			require.LessOrEqual(t, n.Open(), before+2*attemptsToProcess)
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
