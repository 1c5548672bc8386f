package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// The queue pair is lost while the device frees the first of several slabs that are of no use any more. The others are
// freed all the same, when the link has another.
func TestSlabsThatAreOfNoUseAreFreedAfterTheLossOfTheQueuePair(t *testing.T) {
	resumedWith(t, far, func(cfg *Setup) { cfg.LinkIdle = time.Second }, func(t *testing.T, n *sim.Network, c, s *Stream) {
		l := s.link
		ep := endpointOf(l)
		before, _ := l.registeredBytes()
		l.lock()
		for i := range 2 {
			require.NoError(t, l.memory.account.Reserve(firstRing))
			m, err := l.ep.Register(firstRing, fabric.RemoteWrite)
			require.NoError(t, err)
			if i == 0 {
				m = &losing{m, func() {
					ep.Fail(fabric.ErrQueuePair)
					time.Sleep(time.Second)
				}}
			}
			l.m.Rings().Add(m, firstRing, false)
		}
		l.m.ShrinkLater()
		l.unlock()
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, l.Info().Moves)
		after, _ := l.registeredBytes()
		require.Equal(t, before, after)
	})
}

// losing is memory of a link that loses its queue pair while it is freed.
type losing struct {
	fabric.Memory
	lose func()
}

func (m *losing) Free() bool {
	m.lose()
	return m.Memory.Free()
}
