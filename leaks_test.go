package ringnet

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// requireCollected requires that what use is given is garbage once use has returned.
func requireCollected(t *testing.T, use func(value *[64]byte)) {
	t.Helper()
	value := func() weak.Pointer[[64]byte] {
		value := new([64]byte)
		use(value)
		return weak.Make(value)
	}()
	hang.Unless(t, func() bool {
		// Go keeps timers that are stopped, as those of contexts are, until they are many.
		var timers []*time.Timer
		for range 100 {
			timers = append(timers, time.AfterFunc(time.Hour, func() {}))
		}
		for _, timer := range timers {
			timer.Stop()
		}
		runtime.GC()
		return value.Value() == nil
	}, "something keeps it")
}

type contextKey struct{}

// What a call was given, and what that holds, is garbage when the call has returned, though the
// connections, the link and the listener that have come of it live on.
func TestConnectionsAndListenersDoNotKeepContexts(t *testing.T) {
	for name, simulated := range map[string]bool{"auto": true, "shm": true, "auto over shm": false} {
		t.Run(name, func(t *testing.T) {
			if simulated {
				better(t, sim.New(sim.Link{}), nil)
			} else {
				onlySHM(t)
			}
			network := "auto"
			if name == "shm" {
				network = "shm"
			}
			var l net.Listener
			requireCollected(t, func(value *[64]byte) {
				var err error
				l, err = new(ListenConfig).Listen(context.WithValue(t.Context(), contextKey{}, value), network, "127.0.0.1:0")
				require.NoError(t, err)
			})
			defer l.Close()
			for _, cfg := range []*Config{nil, {Dedicated: true}, {Links: 2}} {
				for range 2 { // the second over the link of the first
					var c net.Conn
					requireCollected(t, func(value *[64]byte) {
						ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), contextKey{}, value), hang.After)
						defer cancel()
						var err error
						c, err = (&Dialer{Config: cfg}).DialContext(ctx, network, l.Addr().String())
						require.NoError(t, err)
					})
					s := accept(t, l)
					defer c.Close()
					write(t, c, "hello")
					requireNext(t, s, "hello")
				}
			}
		})
	}
}

// A Dialer whose TrustUser keeps links apart is garbage, too, when no dial can use it any more. So is
// one of which auto remembers failures.
func TestLinksAndFailuresDoNotKeepDialers(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	l := listenAuto(t, "127.0.0.1:0")
	tcp := listenTCP(t, "127.0.0.1:0")
	for carrier, l := range map[string]net.Listener{"shm": l, "tcp": tcp} {
		var c net.Conn
		requireCollected(t, func(value *[64]byte) {
			d := Dialer{TrustUser: func(uint32) bool { return value == nil }}
			var err error
			c, err = d.Dial("auto", l.Addr().String())
			require.NoError(t, err)
			require.Equal(t, carrier, carrierOf(c))
		})
		require.NoError(t, c.Close())
	}
}
