package link

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// A device takes a while to make a queue pair, as where many links need one at once or its
// processor is busy. The link comes back all the same, for the path is there.
func TestALinkComesBackThoughQueuePairsAreMadeSlowly(t *testing.T) {
	for _, latency := range []time.Duration{time.Millisecond, 300 * time.Millisecond} {
		for name, slow := range map[string]func(active bool) bool{
			"of the side that dialed": func(active bool) bool { return active },
			"of the other":            func(active bool) bool { return !active },
			"of both":                 func(bool) bool { return true },
		} {
			for takes := 200 * time.Millisecond; takes <= 1500*time.Millisecond; takes += 100 * time.Millisecond {
				t.Run(fmt.Sprint(name, latency, takes), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := sim.New(sim.Link{Latency: latency})
						client, server := n.Host(fabric.Card{client1}), n.Host(fabric.Card{server1})
						c, s, _ := connectLink(t, client, resuming(client), resuming(server))
						n.SetFaults(sim.Faults{Open: func(e *sim.Endpoint) error {
							if slow(e.LocalAddr().Addr() == client1) {
								time.Sleep(takes)
							}
							return nil
						}})
						defer endAll(t, n, c, s)
						endpointOf(c.link).Fail(fabric.ErrQueuePair)
						if err := writeAll(c, []byte("x")); err != nil {
							t.Fatal(err)
						}
						if _, err := s.Read(make([]byte, 1), unlimited()); err != nil {
							t.Fatal(err)
						}
					})
				})
			}
		}
	}
}
