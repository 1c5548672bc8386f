package rconn_test

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/rconntest"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/rconn"
)

func TestConfigDefaultsAreThoseDocumented(t *testing.T) {
	documented := &rconntest.Config{RecvBuffer: 1 << 20, SendBuffer: 1 << 20, SendQueue: 64, RecvQueue: 176,
		KeepAlive: 10 * time.Second, Linger: 10 * time.Second, HandshakeTimeout: 30 * time.Second}
	var none *rconntest.Config
	require.Equal(t, documented.PinnedMemory(), none.PinnedMemory())
	require.Equal(t, documented.PinnedMemory(), new(rconntest.Config).PinnedMemory())
	// Staging memory, as it is at first, and receives with their headers, inline data, mlx5's queues of 16, 4 and
	// 16 KiB, and a ring.
	const fixed = 64<<10 + (4+4)<<10 + (16+16+4+16+4)<<10
	require.Equal(t, fixed+16<<10, none.PinnedMemory())
	require.Equal(t, fixed+1<<20, (&rconntest.Config{Dedicated: true}).PinnedMemory())
	requireRingMemory(t, none, 16<<10, 1<<20)
	requireRingMemory(t, &rconntest.Config{RecvBuffer: 4 << 10}, 4<<10, 4<<10)
	requireRingMemory(t, &rconntest.Config{Dedicated: true}, 1<<20, 1<<20)

	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) {
		c, s := v.connect(t, nil, nil)
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
		n, _ := c.Write(make([]byte, 1<<20))
		require.Equal(t, documented.RecvBuffer, n, "the peer's ring")

		v.Cut(true)
		start := time.Now()
		require.NoError(t, s.SetLinger(-1))
		require.Error(t, s.Close())
		require.LessOrEqual(t, time.Since(start), documented.Linger)
	})
}

// Each field may be as small and as large as its comment says, on every fabric.
func TestConfigBoundsWorkOnEveryFabric(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("there are not as many addresses")
	}
	largest, longest := 1<<30, time.Duration(math.MaxInt64)
	_, limits := budget.Process.State()
	budget.Process.SetLimit(16 * largest)
	t.Cleanup(func() { budget.Process.SetLimit(0) })
	bounds := map[string]rconntest.Config{
		"RecvBuffer, least":      {RecvBuffer: 4 << 10},
		"RecvBuffer, most":       {RecvBuffer: largest, HandshakeTimeout: time.Hour, LinkIdle: 1},
		"SendBuffer, least":      {SendBuffer: 4 << 10},
		"SendBuffer, most":       {SendBuffer: largest, LinkIdle: 1},
		"SendBuffer, dedicated":  {RecvBuffer: 4 << 10, SendBuffer: largest, Dedicated: true},
		"SendQueue, least":       {SendQueue: 16},
		"SendQueue, most":        {SendQueue: 32768},
		"RecvQueue, least":       {RecvQueue: 4},
		"RecvQueue, most":        {RecvQueue: 32768},
		"Links, most":            {Links: 64},
		"KeepAlive, least":       {KeepAlive: time.Millisecond},
		"KeepAlive, most":        {KeepAlive: longest},
		"KeepAlive, none":        {KeepAlive: -1},
		"Linger, least":          {Linger: 1},
		"Linger, most":           {Linger: longest},
		"HandshakeTimeout, most": {HandshakeTimeout: longest},
		"LinkIdle, least":        {LinkIdle: 1},
		"LinkIdle, most":         {LinkIdle: longest},
		"ResumeTimeout, least":   {ResumeTimeout: 1},
		"ResumeTimeout, most":    {ResumeTimeout: longest},
		"BusyPoll, least":        {BusyPoll: 1},
		"TrafficClass, least":    {TrafficClass: -1},
		"AckTimeout, least":      {AckTimeout: time.Millisecond},
		"AckTimeout, most":       {AckTimeout: time.Minute},
		"Retries, least":         {Retries: 1},
		"Retries, most":          {Retries: 7},
		"Inline, none":           {Inline: -1},
		"Inline, least":          {Inline: 1},
		"Inline, most":           {Inline: 220},
		"Vectors, least":         {Vectors: "0"},
		"Vectors, most":          {Vectors: "8191"},
		"TrafficClass, most":     {TrafficClass: 255},
	}
	test := func(t *testing.T, v venue) {
		for name, cfg := range bounds {
			t.Run(name, func(t *testing.T) {
				if max(cfg.SendBuffer, cfg.RecvBuffer) == largest && (testing.Short() || limits.Registered < 4*largest) {
					t.Skip("it takes 2 GiB, and time to fill them")
				}
				client, server := v.connect(t, &cfg, &cfg)
				write(t, client, "x")
				_, err := io.ReadFull(server, make([]byte, 1))
				require.NoError(t, err)
			})
			// Tests that come behind this one have the memory again.
			hang.Unless(t, func() bool {
				used, _ := budget.Process.State()
				return used.Registered < largest
			}, name)
		}
	}
	t.Run("sim", func(t *testing.T) { test(t, venue{Fabric: sim.New(sim.Link{}), addr: simAddr}) })
	t.Run("shm", func(t *testing.T) { test(t, shmVenue(t)) })
	t.Run("verbs", func(t *testing.T) { test(t, verbsVenue(t)) })
}

func requireRingMemory(t *testing.T, c *rconntest.Config, wantFirst, wantMost int) {
	t.Helper()
	first, most := c.RingMemory()
	require.Equal(t, [2]int{wantFirst, wantMost}, [2]int{first, most})
}

func TestEnvironmentSetsBusyPollWhereConfigDoesNot(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 0, "off": -1, "50us": 50 * time.Microsecond} {
		t.Setenv("RINGNET_BUSYPOLL", value)
		for _, cfg := range []*rconntest.Config{nil, {BusyPoll: time.Second}, {BusyPoll: -1}} {
			if cfg != nil {
				want = cfg.BusyPoll
			}
			l, err := link.NewSetup(cfg)
			require.NoError(t, err)
			require.Equal(t, want, l.BusyPoll)
		}
	}
	for _, value := range []string{"0", "-1us", "50", "on"} {
		t.Setenv("RINGNET_BUSYPOLL", value)
		require.NoError(t, (&rconntest.Config{BusyPoll: -1}).Validate())
		require.EqualError(t, new(rconntest.Config).Validate(), fmt.Sprintf("the environment variable RINGNET_BUSYPOLL is %q: want a positive time, such as 50us, or off", value))
	}
}

func TestConfigIsNotValidWhereASettingOfRDMAIsWrong(t *testing.T) {
	for _, name := range []string{"RINGNET_INLINE", "RINGNET_RELAXED_ORDERING"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "abc")
			for _, cfg := range []*rconntest.Config{nil, {Inline: 1}} {
				require.ErrorContains(t, cfg.Validate(), name+` is "abc": want`)
			}
		})
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	require.NoError(t, (*rconntest.Config)(nil).Validate())
	require.NoError(t, (&rconntest.Config{RecvBuffer: 1 << 30, SendBuffer: 4 << 10, SendQueue: 32768, RecvQueue: 32768, KeepAlive: -1, BusyPoll: -1, TrafficClass: -1}).Validate())
	most := 1 << 30 // twice that is negative where an int has 32 bits
	for field, bad := range map[string][]rconntest.Config{
		"RecvBuffer":       {{RecvBuffer: -1}, {RecvBuffer: 2048}, {RecvBuffer: 4097}, {RecvBuffer: 12 << 10}, {RecvBuffer: 2 * most}},
		"SendBuffer":       {{SendBuffer: -4096}, {SendBuffer: 1}, {SendBuffer: 5000}, {SendBuffer: 2 * most}},
		"SendQueue":        {{SendQueue: -1}, {SendQueue: 15}, {SendQueue: 32769}},
		"RecvQueue":        {{RecvQueue: -4}, {RecvQueue: 3}, {RecvQueue: 6}, {RecvQueue: 32772}},
		"KeepAlive":        {{KeepAlive: 1}},
		"Linger":           {{Linger: -1}},
		"HandshakeTimeout": {{HandshakeTimeout: -time.Second}},
		"TrafficClass":     {{TrafficClass: 256}},
		"Links":            {{Links: -1}, {Links: 65}},
		"AckTimeout":       {{AckTimeout: -1}, {AckTimeout: 999 * time.Microsecond}, {AckTimeout: time.Minute + 1}},
		"Retries":          {{Retries: -1}, {Retries: 8}},
		"Inline":           {{Inline: 221}},
		"Vectors":          {{Vectors: "a"}, {Vectors: "3-1"}, {Vectors: "0, 1"}, {Vectors: "8192"}},
	} {
		for _, cfg := range bad {
			require.ErrorContains(t, cfg.Validate(), "Config."+field, "%+v", cfg)
			require.Zero(t, cfg.PinnedMemory())
			requireRingMemory(t, &cfg, 0, 0)
			inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
				l, err := v.Listen(v.any(), 1)
				require.NoError(t, err)
				defer l.Close()
				_, _, err = v.connectTo(l, &cfg, nil)
				require.ErrorContains(t, err, "Config."+field)
			})
		}
	}
}

func TestDeviceThatGrantsLess(t *testing.T) {
	for name, link := range map[string]sim.Link{
		"nothing inline":     {Inline: -1},
		"everything inline":  {Inline: 1 << 20},
		"one byte inline":    {Inline: 1},
		"short send queue":   {SendQueue: 16},
		"short receives":     {RecvQueue: 18},
		"odd receives":       {RecvQueue: 30},
		"all short, far off": {SendQueue: 16, RecvQueue: 18, Inline: -1, Latency: time.Millisecond, Jitter: 5 * time.Millisecond, Seed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, link, func(t *testing.T, v simVenue) {
				for i, shape := range shapes {
					c, s := v.connect(t, shape.dialer, shape.listener)
					pattern(i).transfer(t, c, s, 100_000, 10_000, c.Close)
				}
			})
		})
	}
}

func TestDeviceThatGrantsTooLittleIsAnError(t *testing.T) {
	for _, link := range []sim.Link{{SendQueue: 15}, {RecvQueue: 17}} {
		inVirtualTime(t, link, func(t *testing.T, v simVenue) {
			l, err := v.Listen(v.any(), 1)
			require.NoError(t, err)
			defer l.Close()
			_, _, err = v.connectTo(l, nil, nil)
			require.ErrorContains(t, err, "the device grants queues of")
		})
	}
}

func TestSmallMessagesBackAndForthAllocateNothing(t *testing.T) {
	for name, over := range realTime {
		t.Run(name, func(t *testing.T) {
			c, s := over(t).connect(t, nil, nil)
			for _, size := range []int{1, 200, 4000} {
				b := make([]byte, size)
				oneWay := func(from, to *rconn.Conn) {
					if _, err := from.Write(b); err != nil {
						t.Error(err)
					}
					if _, err := io.ReadFull(to, b); err != nil {
						t.Error(err)
					}
				}
				require.Zero(t, testing.AllocsPerRun(1000, func() { oneWay(c, s); oneWay(s, c) }), "%d bytes", size)
			}
		})
	}
}
