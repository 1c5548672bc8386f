package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
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

// Devices may be slow where links need another queue pair. Links come back all the same, for the
// path is there.

// slowSides are whose devices are slow.
var slowSides = map[string][]netip.Addr{
	"of the side that dialed": {client1},
	"of the other":            {server1},
	"of both":                 {client1, server1},
}

// requireComeBack loses the queue pairs of so many links at once, where devices are slow.
func requireComeBack(t *testing.T, links int, latency time.Duration, slow func() sim.Faults) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: latency})
		client, server := n.Host(fabric.Card{client1}), n.Host(fabric.Card{server1})
		clients, servers := linksOfBoth(t, client, resuming(client), resuming(server), links)
		n.SetFaults(slow())
		for _, c := range clients {
			endpointOf(c.link).Fail(fabric.ErrQueuePair)
		}
		var all sync.WaitGroup
		for i, c := range clients {
			all.Go(func() {
				wrote := writeAll(c, []byte("x"))
				_, err := servers[i].Read(make([]byte, 1), unlimited())
				if err = errors.Join(wrote, err); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		n.SetFaults(sim.Faults{})
		endAll(t, n, append(clients, servers...)...)
	})
}

// Devices make one queue pair after the other, and many links need one at once.
func TestManyLinksComeBackThoughDevicesMakeQueuePairsInTurn(t *testing.T) {
	for name, sides := range slowSides {
		for _, takes := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond} {
			t.Run(fmt.Sprint(name, takes), func(t *testing.T) {
				requireComeBack(t, times(100), time.Millisecond, func() sim.Faults {
					turns := []chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
					return sim.Faults{Open: func(e *sim.Endpoint) error {
						if side := slices.Index(sides, e.LocalAddr().Addr()); side >= 0 {
							turns[side] <- struct{}{}
							time.Sleep(takes)
							<-turns[side]
						}
						return nil
					}}
				})
			})
		}
	}
}

// A device takes a while to make a queue pair, as where its processor is busy.
func TestALinkComesBackThoughQueuePairsAreMadeSlowly(t *testing.T) {
	for name, sides := range slowSides {
		for _, latency := range []time.Duration{time.Millisecond, 300 * time.Millisecond} {
			for takes := 200 * time.Millisecond; takes <= 1500*time.Millisecond; takes += 100 * time.Millisecond {
				t.Run(fmt.Sprint(name, latency, takes), func(t *testing.T) {
					requireComeBack(t, 1, latency, func() sim.Faults {
						return sim.Faults{Open: func(e *sim.Endpoint) error {
							if slices.Contains(sides, e.LocalAddr().Addr()) {
								time.Sleep(takes)
							}
							return nil
						}}
					})
				})
			}
		}
	}
}

// A device of one side takes longer to register the link's memory than the other waits at first.
func TestALinkComesBackThoughRegisteringTakesLong(t *testing.T) {
	for _, side := range []netip.Addr{client1, server1} {
		for _, takes := range []time.Duration{3 * time.Second, 5 * time.Second, 7 * time.Second, 9 * time.Second} {
			t.Run(fmt.Sprint(side, takes), func(t *testing.T) {
				requireComeBack(t, 1, far.Latency, func() sim.Faults {
					return sim.Faults{Register: func(e *sim.Endpoint, _ int) error {
						if e.LocalAddr().Addr() == side {
							time.Sleep(takes / 2) // for a ring, and for the staging memory
						}
						return nil
					}}
				})
			})
		}
	}
}
