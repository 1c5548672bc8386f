package rconn_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/sim"
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
	for _, at := range []struct{ listener, registering bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", at), func(t *testing.T) {
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				l, err := v.Listen(v.any(), 1)
				require.NoError(t, err)
				defer l.Close()
				fail := func(e *sim.Endpoint, registering bool) error {
					if at.registering == registering && at.listener == (e.LocalAddr() == l.Addr()) {
						return syscall.ENOMEM
					}
					return nil
				}
				v.SetFaults(sim.Faults{
					Open:     func(e *sim.Endpoint) error { return fail(e, false) },
					Register: func(e *sim.Endpoint, _ int) error { return fail(e, true) },
				})
				_, _, err = v.connectTo(l, nil, nil)
				if at.listener {
					require.ErrorIs(t, err, syscall.ECONNREFUSED)
					require.ErrorContains(t, err, syscall.ENOMEM.Error())
				} else {
					require.ErrorIs(t, err, syscall.ENOMEM)
				}
			})
		})
	}
}
