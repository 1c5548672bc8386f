package link

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/hang"
)

// A call that polls for as long as Config.BusyPoll says notices what becomes of the connection
// meanwhile, which no completion tells.
func TestACallThatPollsForLongNoticesThatThePeerHasGone(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // with one processor no call polls
	for name, open := range map[string]func() (fabric.Fabric, error){
		"sim": func() (fabric.Fabric, error) { return sim.New(sim.Link{Spin: 1}), nil },
		"shm": shm.Fabric,
	} {
		t.Run(name, func(t *testing.T) {
			f, err := open()
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			require.NoError(t, err)
			cfg := testConfig
			cfg.BusyPoll = time.Hour
			c, s, _ := connectLink(t, listensAtLoopback{f}, cfg, testConfig)
			read := make(chan error, 1)
			go func() {
				_, err := c.Read(make([]byte, 1), unlimited())
				read <- err
			}()
			hang.Unless(t, func() bool {
				c.link.mu.Lock()
				defer c.link.mu.Unlock()
				return c.calls[readCall].parked || c.link.watch.holder == &c.calls[readCall]
			})
			s.link.Abort()
			select {
			case err := <-read:
				require.Equal(t, syscall.ECONNRESET, err)
			case <-time.After(hang.After):
				require.Fail(t, "Read polls on")
			}
			_ = s.Close(0)
			_ = c.Close(0)
			hang.Unless(t, func() bool { return inUse(cfg.Budget) == 0 }, "other tests have this budget, too")
		})
	}
}
