//go:build linux

package integration_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Whichever end closes a link, nothing of it is left at either; nor here of one whose peer is killed.
func TestLinkOfAHundredConnectionsLeavesNothing(t *testing.T) {
	betweenProcesses(t, func(t *testing.T, at place) {
		cr := startCrowd(t, at)
		cr.dial(t, time.Hour)
		cr.close(t)
		ended := func() bool { return len(ringnet.Links()) == 0 && cr.report(t).Links == 0 }
		require.True(t, eventually(func() bool {
			ringnet.CloseIdleLinks()
			return ended()
		}))
		time.Sleep(time.Second) // until the background has closed what is left
		before, peers := inUse(t), cr.report(t).Held
		closeLinks := func() {
			cr.close(t)
			require.True(t, eventually(func() bool { return reported().Connections == 0 }))
			ringnet.CloseIdleLinks()
		}
		for _, test := range []struct {
			name     string
			linkIdle time.Duration // of the dialer
			end      func()
		}{
			{"idle for long enough", time.Second, func() { cr.close(t) }},
			{"closed by the dialer", time.Hour, closeLinks},
			{"closed by the listener", time.Hour, func() {
				cr.close(t)
				require.True(t, eventually(func() bool {
					cr.peer.tell("close idle links") // its Closes return at any time
					return cr.report(t).Links == 0
				}))
			}},
			{"dials given up at any moment", time.Hour, func() {
				for after := range 40 {
					d := ringnet.Dialer{Config: &ringnet.Config{Dedicated: true}, Timeout: time.Duration(1+after) * 500 * time.Microsecond}
					if c, err := d.Dial(at.network, cr.address); err == nil {
						require.NoError(t, c.Close())
					} else {
						require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					}
				}
				closeLinks()
			}},
			{"a listener closed that has not accepted", time.Hour, func() {
				l, err := ringnet.Listen(at.network, at.any())
				require.NoError(t, err)
				c, err := ringnet.Dial(at.network, l.Addr().String())
				require.NoError(t, err)
				require.NoError(t, l.Close())
				_, err = c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NoError(t, c.Close())
				closeLinks()
			}},
			{"some connections dropped, and then all", -1, func() {
				for _, left := range []int{crowdSize / 2, 0} {
					clear(cr.conns[left:])
					cr.conns = cr.conns[:left]
					require.True(t, eventually(func() bool {
						runtime.GC()
						return cr.report(t).Connections == left
					}))
					cr.requireEchoes(t)
				}
			}},
			{"the listener closed first", -1, func() {
				cr.peer.tell("stop listening")
				cr.requireEchoes(t)
				cr.close(t)
			}},
		} {
			t.Log(test.name)
			cr.dial(t, test.linkIdle)
			test.end()
			if !eventually(func() bool { return ended() && inUse(t).atMost(before) && cr.report(t).Held.atMost(peers) }) {
				stacks := make([]byte, 1<<20)
				t.Logf("links %+v, and goroutines\n%s", ringnet.Links(), stacks[:runtime.Stack(stacks, true)])
				require.Equal(t, peers, cr.report(t).Held, "the peer, before and after")
				require.Equal(t, before, inUse(t), "before and after")
			}
		}
		_, err := ringnet.Dial(at.network, cr.address)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)

		cr = startCrowd(t, at)
		cr.dial(t, -1)
		cr.peer.kill()
		for _, c := range cr.conns {
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
		cr.close(t)
		require.True(t, eventually(func() bool { return len(ringnet.Links()) == 0 && inUse(t).atMost(before) }))
	})
}

// eventually waits until something holds, and reports false if it never does.
func eventually(is func() bool) bool {
	for end := time.Now().Add(hang.After); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// use is what a process has in use that can be counted exactly.
type use struct {
	QueuePairs, CompletionQueues, MemoryRegions, ProtectionDomains, IDs int // by rdma resource show

	Descriptors    int
	Goroutines     int
	DeviceMappings int // queues, which the device shares with the process
	SharedMappings int // with other processes, by shm
	PinnedKiB      int // registered memory
}

// inUse returns what this process has in use, and what all processes have of the device.
func inUse(t *testing.T) use {
	t.Helper()
	u, err := held()
	require.NoError(t, err)
	if os.Getenv("SOFTROCE_ADDR") != "" {
		rdma := resources(t)
		u.QueuePairs, u.CompletionQueues, u.MemoryRegions = rdma["qp"], rdma["cq"], rdma["mr"]
		u.ProtectionDomains, u.IDs = rdma["pd"], rdma["cm_id"]
	}
	return u
}

// held returns what this process has in use besides objects of the device.
func held() (use, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return use{}, err
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	return use{
		Descriptors:    len(descriptors),
		Goroutines:     runtime.NumGoroutine(),
		DeviceMappings: strings.Count(string(maps), "/dev/infiniband/"),
		SharedMappings: strings.Count(string(maps), "memfd:ringnet"),
		PinnedKiB:      status("VmPin"),
	}, err
}

func (u use) atMost(limit use) bool {
	return u.QueuePairs <= limit.QueuePairs && u.CompletionQueues <= limit.CompletionQueues &&
		u.MemoryRegions <= limit.MemoryRegions && u.ProtectionDomains <= limit.ProtectionDomains &&
		u.IDs <= limit.IDs && u.Descriptors <= limit.Descriptors && u.Goroutines <= limit.Goroutines &&
		u.DeviceMappings <= limit.DeviceMappings && u.SharedMappings <= limit.SharedMappings && u.PinnedKiB <= limit.PinnedKiB
}

// resources returns how many objects of each kind the kernel's RDMA subsystem has. It does
// not tell whose: it names threads, which may have ended.
func resources(t *testing.T) map[string]int {
	t.Helper()
	out, err := exec.Command("rdma", "-j", "resource", "show").Output()
	require.NoError(t, err, "rdma resource show")
	var devices []map[string]any
	require.NoError(t, json.Unmarshal(out, &devices))
	total := make(map[string]int)
	for _, device := range devices {
		for kind, n := range device {
			if n, ok := n.(float64); ok {
				total[kind] += int(n)
			}
		}
	}
	return total
}

// status returns a number of /proc/self/status.
func status(name string) int {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == name+":" {
			n, _ := strconv.Atoi(fields[1])
			return n
		}
	}
	return 0
}
