package link

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// Devices make one queue pair after the other, and many links need one at once.
func TestManyLinksComeBackThoughDevicesMakeQueuePairsInTurn(t *testing.T) {
	for _, who := range []string{"both", "active", "passive"} {
		for _, takes := range []time.Duration{5, 20, 60, 100} {
			takes *= time.Millisecond
			t.Run(fmt.Sprint(who, takes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := sim.New(sim.Link{Latency: time.Millisecond})
					client, server := n.Host(fabric.Card{client1}), n.Host(fabric.Card{server1})
					clients, servers := linksOfBoth(t, client, resuming(client), resuming(server), 100)
					var turn [2]chan struct{}
					turn[0], turn[1] = make(chan struct{}, 1), make(chan struct{}, 1)
					n.SetFaults(sim.Faults{Open: func(e *sim.Endpoint) error {
						side := 0
						if e.LocalAddr().Addr() == server1 {
							side = 1
						}
						if who == "both" || side == 0 == (who == "active") {
							turn[side] <- struct{}{}
							time.Sleep(takes)
							<-turn[side]
						}
						return nil
					}})
					began := time.Now()
					for _, c := range clients {
						endpointOf(c.link).Fail(fabric.ErrQueuePair)
					}
					var all sync.WaitGroup
					var mu sync.Mutex
					failed, first := 0, error(nil)
					for i := range clients {
						all.Go(func() {
							err := writeAll(clients[i], []byte("x"))
							if err == nil {
								_, err = servers[i].Read(make([]byte, 1), unlimited())
							}
							if err != nil {
								mu.Lock()
								failed++
								first = err
								mu.Unlock()
							}
						})
					}
					all.Wait()
					if failed > 0 {
						t.Errorf("%d of %d links ended: %v", failed, len(clients), first)
					}
					t.Log("took", time.Since(began))
					for i := range clients {
						_ = clients[i].Close(0)
						_ = servers[i].Close(0)
					}
					time.Sleep(3 * time.Minute)
				})
			})
		}
	}
}
