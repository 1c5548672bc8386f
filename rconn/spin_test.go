package rconn_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// Calls poll before they park. The tests here run in real time, because virtual time stands
// still while a goroutine polls. What matters is who looks at the completion queue after
// that.

// polling runs a test over links and with configurations that poll for different times,
// from hardly at all to nearly always.
func polling(t *testing.T, test func(t *testing.T, v venue, cfg rconn.Config)) {
	for _, spin := range []int{1, 2, 10, 1000} {
		for _, busy := range []time.Duration{0, time.Microsecond, time.Millisecond, -1} {
			t.Run(fmt.Sprintf("spin %d, busy %v", spin, busy), func(t *testing.T) {
				v := venue{Fabric: sim.New(sim.Link{Spin: spin}), addr: simAddr}
				test(t, v, rconn.Config{BusyPoll: busy, KeepAlive: -1})
			})
		}
	}
}

// A Read that has polled, and returns to its application, has another goroutine look at the
// completion queue: here a parked Write depends on it.
func TestPollingReadLeavesNoWriteParked(t *testing.T) {
	polling(t, func(t *testing.T, v venue, cfg rconn.Config) {
		cfg.RecvBuffer, cfg.SendBuffer = 4<<10, 4<<10
		client, server := v.connect(t, &cfg, &cfg)
		const piece = 16 << 10 // several rings
		rounds := venue{}.times(200)
		received := make(chan struct{})
		atOnce(t, func() error { return pattern(0).send(server, 0, rounds*piece, 10_000, rand.New(rand.NewPCG(0, 0))) },
			func() error {
				b := make([]byte, 1)
				for range rounds {
					if _, err := io.ReadFull(server, b); err != nil {
						return err
					}
					<-received // only the Write is under way
				}
				return nil
			},
			func() error {
				for i := range rounds {
					if _, err := client.Write([]byte{1}); err != nil {
						return err
					}
					if err := pattern(0).receiveExactly(client, i*piece, piece); err != nil {
						return err
					}
					received <- struct{}{}
				}
				return nil
			})
	})
}

func TestPollingPingPong(t *testing.T) {
	polling(t, func(t *testing.T, v venue, cfg rconn.Config) {
		client, server := v.connect(t, &cfg, nil)
		rounds := venue{}.times(1000)
		half := func(c *rconn.Conn, first bool) func() error {
			return func() error {
				b := make([]byte, 8)
				for i := range rounds {
					if first || i > 0 {
						if _, err := c.Write(b); err != nil {
							return err
						}
					}
					if _, err := io.ReadFull(c, b); err != nil {
						return err
					}
				}
				if !first {
					_, err := c.Write(b)
					return err
				}
				return nil
			}
		}
		atOnce(t, half(client, true), half(server, false))
		atOnce(t, client.Close, server.Close)
	})
}
