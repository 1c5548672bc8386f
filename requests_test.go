package ringnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/hang"
)

// crowd counts the requests that are under way.
type crowd struct{ now, most atomic.Int32 }

func (c *crowd) connect(connect func() ([]byte, error)) ([]byte, error) {
	now := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	return connect()
}

// simulateCrowd makes the network "crowd", whose requests have a limit as those
// of rdma have, and where the hosts from 10.0.0.5 on are silent.
func simulateCrowd(t *testing.T) *crowd {
	n := sim.New(sim.Link{})
	for i := range byte(100) {
		n.Blackhole(netip.AddrFrom4([4]byte{10, 0, 0, 5 + i}))
	}
	c := new(crowd)
	f := &hooked{Fabric: n, connect: c.connect}
	addNetwork(t, "crowd", network{&carrier{name: "crowd", open: opens(f), requests: newRequestLimiter()}, "ip"})
	return c
}

// dialSilentHosts makes many dials to each of several silent hosts, which wait for an
// answer until cancel, or the end of the test.
func dialSilentHosts(t *testing.T, f *crowd, hosts, most int) (cancel func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var dialing sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		dialing.Wait()
		all, _ := networks["crowd"].requests.UnderWay(netip.Addr{})
		require.Zero(t, all, "everybody has gone")
		require.EqualValues(t, most, f.most.Load())
	})
	for host := range hosts {
		for range 2 * requestsPerHost {
			dialing.Go(func() {
				_, _ = (&Dialer{Config: smallDedicated}).DialContext(ctx, "crowd", fmt.Sprintf("10.0.0.%d:80", 5+host))
			})
		}
	}
	hang.Unless(t, func() bool { return int(f.now.Load()) == most })
	return cancel
}

// smallDedicated has each dial make a request of its own.
var smallDedicated = func() *Config {
	c := *small
	c.Dedicated = true
	return &c
}()

func TestRequestsUnderWayAreAtMost64(t *testing.T) {
	f := simulateCrowd(t)
	l := host{"crowd", "10.0.0.1"}.listen(t, ListenConfig{Config: small})
	cancel := dialSilentHosts(t, f, 8, 64)

	// A dial that finds no place waits for one until its timeout.
	_, err := (&Dialer{Config: smallDedicated, Timeout: time.Millisecond}).Dial("crowd", l.Addr().String())
	requireOpError(t, err, "dial", "crowd", "10.0.0.1:"+port(t, l), os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "i/o timeout: waited for 64 other requests of this process")
	waiting := make(chan error, 1)
	go func() {
		c, err := (&Dialer{Config: smallDedicated}).Dial("crowd", l.Addr().String())
		if err == nil {
			err = c.Close()
		}
		waiting <- err
	}()
	cancel()
	require.NoError(t, <-waiting)
}

func TestRequestsUnderWayToOneHostAreAtMost16(t *testing.T) {
	f := simulateCrowd(t)
	l := host{"crowd", "10.0.0.1"}.listen(t, ListenConfig{Config: small})
	dialSilentHosts(t, f, 1, 16)
	_, err := (&Dialer{Config: smallDedicated, Timeout: time.Millisecond}).Dial("crowd", "10.0.0.5:80")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "waited for 16 other requests to 10.0.0.5")

	f.most.Store(16) // the next request is one more than these
	c, err := (&Dialer{Config: smallDedicated, Timeout: time.Minute}).Dial("crowd", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.EqualValues(t, 17, f.most.Swap(16))
}

// The bound is for rdma_cm, which shm does not use: over shm any number of dials may wait
// for listeners that do not answer.
func TestRequestsOverSHMAreNotBounded(t *testing.T) {
	h := shmHost(t)
	f, err := openSHM(nil, nil)
	require.NoError(t, err)
	hung, err := f.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 200)
	require.NoError(t, err)
	var dialing sync.WaitGroup
	for range 100 {
		dialing.Go(func() {
			_, err := (&Dialer{Config: smallDedicated}).Dial("shm", hung.Addr().String())
			assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		})
	}
	for range 100 { // all 100 requests arrive, and none is answered
		ep, err := hung.Accept()
		require.NoError(t, err)
		defer ep.Close()
	}
	l := h.listen(t, ListenConfig{Config: small})
	c, err := (&Dialer{Config: smallDedicated, Timeout: time.Minute}).Dial("shm", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	t.Cleanup(dialing.Wait)
	require.NoError(t, hung.Close())
}
