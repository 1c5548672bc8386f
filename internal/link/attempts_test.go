package link

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// TestAPathThatIsBackIsFoundAtOnce has the cable come back at any time of an attempt,
// long ones among them.
func TestAPathThatIsBackIsFoundAtOnce(t *testing.T) {
	for out := 5 * time.Second; out < 25*time.Second; out += 700 * time.Millisecond {
		t.Run(fmt.Sprint(out), func(t *testing.T) {
			resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
				n.Cut(true)
				require.NoError(t, writeAll(c, []byte("x")))
				time.Sleep(out)
				n.Cut(false)
				back := time.Now()
				_, err := s.Read(make([]byte, 1), unlimited())
				require.NoError(t, err)
				require.Less(t, time.Since(back), 1500*time.Millisecond)
			})
		})
	}
}

// TestASearchThatEndsInItsFirstAttemptSaysWhat has the time be over before that.
func TestASearchThatEndsInItsFirstAttemptSaysWhat(t *testing.T) {
	short := func(cfg *Setup) { cfg.ResumeTimeout = firstAttempt / 2 }
	resumedWith(t, far, short, func(t *testing.T, n *sim.Network, c, s *Stream) {
		n.Cut(true)
		for _, end := range []*Stream{c, s} {
			endpointOf(end.link).Fail(fabric.ErrQueuePair)
			_, err := end.Read(make([]byte, 1), unlimited())
			require.ErrorContains(t, err, errNoAnswer.Error())
		}
	})
}

// TestEitherSideBringsAnotherQueuePair has requests of the other side not arrive, as where a
// firewall lets none through.
func TestEitherSideBringsAnotherQueuePair(t *testing.T) {
	for name, silent := range map[string]func(c, s *Stream) *Link{
		"the side that dialed": func(_, s *Stream) *Link { return s.link },
		"the other":            func(c, _ *Stream) *Link { return c.link },
	} {
		t.Run(name, func(t *testing.T) {
			resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
				to := silent(c, s).path.peers[0].Port()
				n.SetFaults(sim.Faults{Lose: func(e *sim.Endpoint, m sim.Message) bool {
					return m == sim.REQ && e.RemoteAddr().Port() == to
				}})
				for moves := range uint64(10) {
					endpointOf(c.link).Fail(fabric.ErrQueuePair)
					endpointOf(s.link).Fail(fabric.ErrQueuePair)
					require.Less(t, requireEcho(t, c, s), time.Second)
					require.Equal(t, moves+1, c.link.Info().Moves)
				}
			})
		})
	}
}

// TestAPeerThatIsGoneIsSoonGivenUpByAllItsLinks has the process of many links be gone, and
// what else the host has be silent: that one link has been told so has the others look there.
func TestAPeerThatIsGoneIsSoonGivenUpByAllItsLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		_, passive, _ := twoCards(n)
		client := n.Host(fabric.Card{client1})
		clients, servers := linksOfBoth(t, client, resuming(client), passive, 100)
		n.CutCard(server2, true)
		require.NoError(t, servers[0].link.path.listener.listener.Close())
		for _, s := range servers {
			s.link.Abort()
		}
		began := time.Now()
		for _, c := range clients {
			_, err := c.Read(make([]byte, 1), unlimited())
			require.Error(t, err)
		}
		require.Less(t, time.Since(began), attemptTime/2)
		endAll(t, n, append(clients, servers...)...)
	})
}
