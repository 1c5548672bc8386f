package ringnet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// The links of a listener that is closed leave, at both ends: those that carry nothing at
// once, and the others when their last connection has been closed.
func TestLinksOfAListenerThatIsClosedLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: time.Millisecond})
		simulate(t, n)
		const soon = time.Second
		h := host{"sim", "10.0.0.1"}
		for range 3 {
			l := h.listen(t, ListenConfig{})
			c, err := Dial(h.network, l.Addr().String())
			require.NoError(t, err)
			s, err := l.Accept()
			require.NoError(t, err)
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
			time.Sleep(soon)
			require.Greater(t, n.Open(), 1, "the link is kept for another connection")
			require.NoError(t, l.Close())
			time.Sleep(soon)
			require.Zero(t, n.Open(), "the listener is closed, and the link carries nothing")
		}

		l := h.listen(t, ListenConfig{})
		c, err := Dial(h.network, l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		time.Sleep(time.Hour)
		_, err = s.Write([]byte("x"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		time.Sleep(soon)
		require.Zero(t, n.Open(), "the listener is closed, and the last connection")
	})
}
