package link

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// Devices may take seconds over much memory, or over saying that they are there. Nobody
// else waits for that.

// locker is a lock that may be tried.
type locker interface {
	TryLock() bool
	Unlock()
}

// isHeld reports whether a lock is held, and not just for a moment.
func isHeld(l locker) bool {
	for range 100_000 {
		if l.TryLock() {
			l.Unlock()
			return false
		}
		runtime.Gosched()
	}
	return true
}

// TestNobodyWaitsForADeviceThatRegisters has a link lose its queue pair whose memory takes
// its device a second for each piece, and buffers of its closed meanwhile.
func TestNobodyWaitsForADeviceThatRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := resuming(n)
		c, s, _ := connectLink(t, n, cfg, cfg)
		buffers := make(chan *Buffer, 2)
		for range cap(buffers) {
			b, err := c.link.NewBuffer(4096)
			require.NoError(t, err)
			buffers <- b
		}
		var held, registered atomic.Int32
		n.SetFaults(sim.Faults{Register: func(*sim.Endpoint, int) error {
			registered.Add(1)
			for _, l := range []*Link{c.link, s.link} {
				if isHeld(&l.mu) {
					held.Add(1)
				}
			}
			time.Sleep(time.Second / 2)
			select {
			case b := <-buffers:
				go b.Close()
			default:
			}
			time.Sleep(time.Second / 2)
			return nil
		}})
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		requireEcho(t, c, s)
		n.SetFaults(sim.Faults{})
		require.Greater(t, registered.Load(), int32(4), "both sides' memory")
		require.Zero(t, held.Load(), "calls of the link's streams would have had to wait")
		require.NoError(t, c.Close(time.Minute))
		require.NoError(t, s.Close(time.Minute))
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints or listeners left open")
		require.Zero(t, inUse(testConfig.Budget), "memory left in use")
	})
}

// A device of one side takes longer to register the link's memory than the other waits at first.
func TestALinkComesBackThoughRegisteringTakesLong(t *testing.T) {
	for _, side := range []netip.Addr{client1, server1} {
		for _, takes := range []int{3, 5, 7, 9} {
			t.Run(fmt.Sprint(side, " ", takes, "s"), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := sim.New(far)
					c, s, _ := connectLink(t, n.Host(fabric.Card{client1}), resuming(n.Host(fabric.Card{client1})), resuming(n.Host(fabric.Card{server1})))
					n.SetFaults(sim.Faults{Register: func(e *sim.Endpoint, _ int) error {
						if e.LocalAddr().Addr() == side {
							time.Sleep(time.Duration(takes) * time.Second / 2) // for a ring, and for the staging memory
						}
						return nil
					}})
					endpointOf(c.link).Fail(fabric.ErrQueuePair)
					requireEcho(t, c, s)
					n.SetFaults(sim.Faults{})
					endAll(t, n, c, s)
				})
			})
		}
	}
}

// slowHost is a host that takes long to say which cards it has.
type slowHost struct {
	*sim.Host
	asked func()
}

func (h slowHost) Cards() []fabric.Card {
	h.asked()
	return h.Host.Cards()
}

// TestNoRequestWaitsForAListOfCards has requests brought to links while this host's cards
// are listed.
func TestNoRequestWaitsForAListOfCards(t *testing.T) {
	n := sim.New(sim.Link{})
	var r *ReconnectListener
	held := false
	r = &ReconnectListener{Fabric: slowHost{n.Host(fabric.Card{client1}, fabric.Card{client2}), func() { held = isHeld(&r.mu) }}}
	require.Len(t, r.others(client1), 1)
	require.False(t, held)
}
