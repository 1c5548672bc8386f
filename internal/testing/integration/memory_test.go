//go:build linux

package integration_test

import (
	"encoding/json"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// pinned returns how many bytes of this process's memory devices have pinned.
func pinned() int { return status("VmPin") << 10 }

// registered returns how many bytes the links of this process have registered: what they report
// without the device's queues.
func registered() (total int) {
	for _, l := range ringnet.Links() {
		total += l.Memory - deviceQueues
	}
	return total
}

// The kernel counts as pinned what links report, and the queues of devices, which some pin
// and some do not. Idle rings leave nothing pinned.
func TestLinksPinWhatTheyHaveRegistered(t *testing.T) {
	rdmaAddr(t)
	alone(t, nil, func(t *testing.T) {
		l := listen(t, ringnet.ListenConfig{Config: &ringnet.Config{LinkIdle: time.Second}})
		require.Zero(t, pinned())
		agrees := func() {
			t.Helper()
			require.GreaterOrEqual(t, pinned(), registered())
			require.LessOrEqual(t, pinned(), ringnet.Memory().Locked)
		}
		dialer := ringnet.Dialer{Config: &ringnet.Config{LinkIdle: time.Second}}
		dial := func() (d, a net.Conn) {
			d, err := dialer.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { d.Close() })
			return d, accept(t, l)
		}
		d, a := dial()
		agrees()
		first := pinned()
		require.LessOrEqual(t, first, 2*dialer.Config.PinnedMemory())

		for range 20 {
			d, a := dial()
			requireEcho(t, d, a)
			agrees()
			require.NoError(t, d.Close())
			require.NoError(t, a.Close())
		}
		const bytes = 2 << 20
		atOnce(t,
			func() error { return (&stream{seed: 1}).send(d, bytes, bytes) },
			func() error { return (&stream{seed: 1}).receive(a, bytes) })
		agrees()
		require.Greater(t, pinned(), first)

		// What the device has let go is told of a moment later.
		require.True(t, eventually(func() bool { return pinned() == first && registered() <= first }), "%d bytes, %d at first", pinned(), first)
		agrees()
		requireEcho(t, d, a)
		require.NoError(t, d.Close())
		require.NoError(t, a.Close())
		require.True(t, eventually(func() bool { return pinned() == 0 }), "%d bytes left", pinned())
		// What the device has let go counts until then.
		require.True(t, eventually(func() bool { return ringnet.Memory().Used == 0 }), "%d bytes left", ringnet.Memory().Used)
	})
}

// A process that may lock little memory has as many links as fit. Then dials fail with an
// error that says so, and auto takes TCP until there is memory again.
func TestLockedMemoryIsUsedUp(t *testing.T) {
	const limit = 5 << 20 // for two ends of links, and a little more
	unprivileged(t, 0o666, limit, func(t *testing.T) {
		require.Equal(t, limit, ringnet.Memory().LockedLimit)
		t.Setenv("RINGNET_NETWORKS", "rdma,tcp")
		l, err := ringnet.Listen("auto", net.JoinHostPort(rdmaAddr(t), "0"))
		require.NoError(t, err)
		defer l.Close()
		accept := func() net.Conn {
			c, err := l.Accept()
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			return c
		}
		dialer := ringnet.Dialer{Config: &ringnet.Config{Dedicated: true}}
		var ends []net.Conn
		for {
			d, err := dialer.Dial("rdma", l.Addr().String())
			if err != nil {
				requireOpError(t, err, "dial", l.Addr().String(), syscall.ENOMEM)
				require.ErrorContains(t, err, "KiB more would have to be locked, ringnet has")
				require.ErrorContains(t, err, "may lock 5120 KiB in all (RLIMIT_MEMLOCK)")
				break
			}
			a := accept()
			requireEcho(t, d, a)
			ends = append(ends, d, a)
		}
		require.NotEmpty(t, ends)
		require.LessOrEqual(t, pinned(), limit)

		auto := func() *ringnet.AutoConn {
			c, err := dialer.Dial("auto", l.Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			return c.(*ringnet.AutoConn)
		}
		c := auto()
		require.Equal(t, "tcp", c.Carrier())
		require.ErrorContains(t, c.PassedOver()[1], "rdma: ")
		// Where all processors are busy TCP may be connected before rdma has failed.
		require.Contains(t, []ringnet.ReasonCode{ringnet.ReasonLockedMemory, ringnet.ReasonNotTried}, c.PassedOver()[1].Code)
		requireEcho(t, c, accept())
		requireEcho(t, ends[0], ends[1])

		for _, c := range ends {
			require.NoError(t, c.Close())
		}
		require.True(t, eventually(func() bool { return ringnet.Memory().Used == 0 }))
		c = auto()
		require.Equal(t, "rdma", c.Carrier())
		requireEcho(t, c, accept())
	})
}

// Two processes that may lock 8 MiB, which is what systemd and containerd let those of other users than root, have
// thirty links for conversations and two for bulk. The ideal card locks nothing, and counts.
func TestThirtyTwoPeersWithinEightMiB(t *testing.T) {
	const limit, conversations, bulk = 8 << 20, 30, 2
	within := func(t *testing.T, test func(t *testing.T)) { unprivileged(t, 0o666, limit, test) }
	if onCard() {
		within = func(t *testing.T, test func(t *testing.T)) { alone(t, nil, test) }
	}
	within(t, func(t *testing.T) {
		if onCard() {
			ringnet.SetMemoryLimit(limit)
		} else {
			require.Equal(t, limit, ringnet.Memory().LockedLimit)
		}
		p := start(t, "peers", rdmaAddr(t), strconv.Itoa(conversations+bulk), strconv.Itoa(limit))
		var addrs []string
		require.NoError(t, json.Unmarshal([]byte(p.hear()), &addrs))
		dial := func(addr string) net.Conn {
			c, err := ringnet.Dial("rdma", addr)
			require.NoError(t, err, "%+v", ringnet.Memory())
			t.Cleanup(func() { c.Close() })
			return c
		}
		var all []func() error
		for i, addr := range addrs {
			if i < bulk {
				c, seed := dial(addr), uint64(i)
				const n = 32 << 20
				all = append(all,
					func() error { return (&stream{seed: seed}).send(c, n, 1<<20) },
					func() error { return (&stream{seed: seed}).receive(c, n) })
				continue
			}
			for range 2 {
				c := dial(addr)
				all = append(all, func() error {
					for range times(20, 1000) {
						if err := echoed(c, 1000); err != nil {
							return err
						}
					}
					return nil
				})
			}
		}
		atOnce(t, all...)
		links := ringnet.Links()
		require.Len(t, links, conversations+bulk)
		largest := 0
		for _, l := range links {
			largest = max(largest, l.Memory)
		}
		require.Greater(t, largest, (*ringnet.Config)(nil).PinnedMemory()+256<<10, "bulk has more")
		require.LessOrEqual(t, ringnet.Memory().Used, limit)
		require.LessOrEqual(t, pinned(), limit)
		t.Logf("%+v, %d bytes pinned, the largest link %d", ringnet.Memory(), pinned(), largest)
		if onCard() {
			require.LessOrEqual(t, statistic(t).Registered, 2*limit)
		}
	})
}

// peers listens at so many ports of an address, says where, and sends back what arrives, within so much memory.
func peers(args []string) error {
	n, _ := strconv.Atoi(args[1])
	limit, _ := strconv.Atoi(args[2])
	ringnet.SetMemoryLimit(limit)
	addrs := make([]string, n)
	for i := range addrs {
		l, err := ringnet.Listen("rdma", net.JoinHostPort(args[0], "0"))
		if err != nil {
			return err
		}
		addrs[i] = l.Addr().String()
		go echoAll(l)
	}
	if err := sayJSON(addrs); err != nil {
		return err
	}
	hear()
	return nil
}
