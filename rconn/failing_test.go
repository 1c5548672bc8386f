package rconn_test

import (
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// Whichever calls fail, alone or together, Read and Write return an error, Close returns,
// and nothing is left open.
func TestDeviceWhoseCallsFail(t *testing.T) {
	calls := []string{"PostRecv", "PostSend", "Poll", "Arm", "Disconnect"}
	for set := range 1 << len(calls) {
		inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
			var now atomic.Bool
			v.Fabric = &hooked{v.Fabric, func(dialed bool, name string, call func() error) error {
				if now.Load() && dialed && set>>slices.Index(calls, name)&1 == 1 {
					return syscall.EIO
				}
				return call()
			}}
			c, s := v.connect(t, tight, nil)
			now.Store(true)
			read := started(func() error { _, err := c.Read(make([]byte, 100)); return err })
			write(t, s, "x")
			wrote := started(func() error { return writeUntilError(c) })
			time.Sleep(time.Minute)
			_ = s.Close()
			_ = c.Close()
			require.NotNil(t, <-wrote)
			if err := <-read; err != nil {
				require.NotErrorIs(t, err, syscall.EPROTO, "%b", set)
			}
			time.Sleep(time.Minute)
			require.Empty(t, v.Endpoints(), "%b", set)
		})
	}
}

// A failure at any step of the set-up is an error at this end and a refusal at the other,
// and leaves nothing open.
func TestSetUpThatFailsIsAnErrorAtBothEnds(t *testing.T) {
	broken := syscall.ENOMEM
	for _, side := range []string{"dialer", "listener"} {
		for name, faults := range map[string]func(mine func(*sim.Endpoint) bool) sim.Faults{
			"Open": func(mine func(*sim.Endpoint) bool) sim.Faults {
				return sim.Faults{Open: func(e *sim.Endpoint) error {
					if mine(e) {
						return broken
					}
					return nil
				}}
			},
			"Register": func(mine func(*sim.Endpoint) bool) sim.Faults {
				return sim.Faults{Register: func(e *sim.Endpoint, _ int) error {
					if mine(e) {
						return broken
					}
					return nil
				}}
			},
		} {
			t.Run(side+" "+name, func(t *testing.T) {
				inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
					l, err := v.Listen(v.any(), 1)
					require.NoError(t, err)
					defer l.Close()
					v.SetFaults(faults(func(e *sim.Endpoint) bool { return (e.LocalAddr() == l.Addr()) == (side == "listener") }))
					_, _, err = v.connectTo(l, nil, nil)
					if side == "dialer" {
						require.ErrorIs(t, err, broken)
					} else {
						require.ErrorIs(t, err, syscall.ECONNREFUSED)
						require.ErrorContains(t, err, broken.Error())
					}
				})
			})
		}
	}
}
