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

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

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
				requireComeBack(t, 100, time.Millisecond, func() sim.Faults {
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
