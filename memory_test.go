package ringnet

import (
	"bytes"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// limitMemory waits until no memory is in use, and then limits it for the length of a test.
func limitMemory(t *testing.T, n int) {
	t.Helper()
	hang.Unless(t, func() bool {
		CloseIdleLinks()
		return Memory().Used == 0
	}, "links of other tests: %+v", Links())
	SetMemoryLimit(n)
	t.Cleanup(func() { SetMemoryLimit(0) })
}

func TestMemoryHasALimitByDefault(t *testing.T) {
	m := Memory()
	require.Less(t, m.Limit, math.MaxInt)
	require.Positive(t, m.Limit)
	require.GreaterOrEqual(t, m.Used, m.Locked)
	SetMemoryLimit(123 << 20)
	require.Equal(t, 123<<20, Memory().Limit)
	SetMemoryLimit(-1)
	require.Equal(t, m.Limit, Memory().Limit)
}

// What all links take together is what Memory returns as in use.
func TestMemoryInUseIsThatOfLinks(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		limitMemory(t, 0)
		l := h.listen(t, ListenConfig{})
		acceptAll(t, l)
		for range 20 {
			c := dial(t, &Dialer{}, h.network, l.Addr().String())
			_, err := c.Write(make([]byte, 100_000))
			require.NoError(t, err)
		}
		ofLinks := func() (sum int) {
			for _, info := range Links() {
				sum += info.Memory
			}
			return sum
		}
		require.Greater(t, ofLinks(), 2*(1<<20+20*16<<10))
		hang.Unless(t, func() bool { return ofLinks() == Memory().Used }, "rings may still grow")
	})
}

func TestMemoryLimitFailsDials(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		one := (&Config{RecvQueue: 4}).PinnedMemory() // more than an end takes on any of the networks
		dial := Dialer{Config: &Config{RecvQueue: 4, Dedicated: true, RecvBuffer: 16 << 10}}
		l := h.listen(t, ListenConfig{})
		limitMemory(t, 50<<10)
		_, err := dial.Dial(h.network, l.Addr().String())
		requireOpError(t, err, "dial", h.network, l.Addr().String(), syscall.ENOMEM)
		require.ErrorContains(t, err, "KiB more would have to be registered, and ringnet has 0 KiB of 50 KiB (ringnet.SetMemoryLimit)")

		SetMemoryLimit(one)
		_, err = dial.Dial(h.network, l.Addr().String())
		requireOpError(t, err, "dial", h.network, l.Addr().String(), syscall.ECONNREFUSED)
		require.ErrorContains(t, err, "connection refused by the peer: ")
		require.ErrorContains(t, err, "KiB more would have to be registered, and ringnet has")

		SetMemoryLimit(0)
		c, err := dial.Dial(h.network, l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}

// Where rings cannot grow, traffic goes on in the small ones.
func TestMemoryLimitStopsGrowthOfRingsNotTraffic(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		l := h.listen(t, ListenConfig{})
		limitMemory(t, 2*((*Config)(nil).PinnedMemory()+364<<10)) // for ten rings at each end
		var all sync.WaitGroup
		var ends [10][2]net.Conn
		for i := range ends {
			ends[i] = [2]net.Conn{dial(t, &Dialer{}, h.network, l.Addr().String()), accept(t, l)}
		}
		for i, e := range ends {
			for _, way := range [][2]net.Conn{e, {e[1], e[0]}} {
				all.Go(func() {
					_, err := way[0].Write(bytes.Repeat([]byte{byte(i), 1, 2}, 100_000))
					assert.NoError(t, err)
				})
				all.Go(func() {
					got := make([]byte, 300_000)
					_, err := io.ReadFull(way[1], got)
					assert.NoError(t, err)
					assert.True(t, bytes.Equal(got, bytes.Repeat([]byte{byte(i), 1, 2}, 100_000)))
				})
			}
		}
		all.Wait()
		m := Memory()
		require.LessOrEqual(t, m.Used, m.Limit)
	})
}

func TestAutoTakesTCPWhileMemoryIsShortAndSaysWhy(t *testing.T) {
	better(t, sim.New(sim.Link{}), sim.New(sim.Link{}))
	limitMemory(t, 50<<10)
	c := requireCarried(t, listenAuto(t, "127.0.0.1:0"), Dialer{}, "tcp")
	requireReasons(t, c, "shm: ", "rdma: ")
	for _, reason := range c.PassedOver() {
		require.ErrorIs(t, reason, syscall.ENOMEM)
		require.ErrorContains(t, reason, "KiB more would have to be registered, and ringnet has 0 KiB of 50 KiB")
	}
	SetMemoryLimit((*Config)(nil).PinnedMemory())
	c = requireCarried(t, listenAuto(t, "127.0.0.1:0"), Dialer{}, "tcp")
	requireReasons(t, c, "shm: connection refused by the peer: ", "rdma: connection refused by the peer: ")
	for _, reason := range c.PassedOver() {
		require.ErrorContains(t, reason, "KiB more would have to be registered")
	}
	SetMemoryLimit(0)
	requireCarried(t, listenAuto(t, "127.0.0.1:0"), Dialer{}, "shm")
}
