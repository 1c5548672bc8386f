package ringnet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// If the peer's application does not close, the times that its stream and that the link
// wait for it pass at the same moment. A PostSend that is under way then returns before the
// endpoint is closed.
func TestCloseOfALinkWaitsForWhatIsBeingPosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		f := &hooked{Fabric: sim.New(sim.Link{Latency: time.Millisecond}), postSend: func(post func() error) error {
			time.Sleep(10 * time.Millisecond)
			return post()
		}}
		addNetwork(t, "slow", network{&carrier{name: "slow", open: opens(f)}, "ip"})
		l := host{"slow", "10.0.0.1"}.listen(t, ListenConfig{Config: small})
		for range 20 {
			c, err := (&Dialer{Config: smallDedicated}).Dial("slow", l.Addr().String())
			require.NoError(t, err)
			s, err := l.Accept()
			require.NoError(t, err)
			require.NoError(t, c.Close())
			time.Sleep(20 * time.Second)
			require.NoError(t, s.Close())
		}
	})
}
