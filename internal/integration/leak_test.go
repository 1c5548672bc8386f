//go:build linux

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/hang"
)

func TestConnectionsAndDialsLeaveNothingBehind(t *testing.T) {
	rdmaAddr(t)
	alone(t, nil, func(t *testing.T) {
		for name, cycles := range map[string]func(t *testing.T) func() error{
			"connections":      connections,
			"cancelled dials":  cancelledDials,
			"closed listeners": closedListeners,
		} {
			t.Run(name, func(t *testing.T) { requireNothingLeft(t, times(10, 200), cycles(t)) })
		}
	})
}

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
		for _, test := range []struct {
			name     string
			linkIdle time.Duration // of the dialer
			end      func()
		}{
			{"idle for long enough", time.Second, func() { cr.close(t) }},
			{"closed by the dialer", time.Hour, func() {
				cr.close(t)
				require.True(t, eventually(func() bool { return reported().Connections == 0 }))
				ringnet.CloseIdleLinks()
			}},
			{"closed by the listener", time.Hour, func() {
				cr.close(t)
				require.True(t, eventually(func() bool {
					cr.peer.tell("close idle links") // its Closes return at any time
					return cr.report(t).Links == 0
				}))
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

// requireNothingLeft repeats something n times, and requires that this process then has no
// more in use than before. What the first few times leave stays: event loops, caches,
// threads with their stacks.
func requireNothingLeft(t *testing.T, n int, cycle func() error) {
	t.Helper()
	idle := inUse(t)
	for range 5 {
		require.NoError(t, cycle())
	}
	// The background closes the rest of a connection, which takes up to the time in which
	// the peer may answer. Links would stay for a while.
	left := func() use {
		ringnet.CloseIdleLinks()
		return inUse(t)
	}
	// Queue pairs are counted over all processes. Those of other processes, which other
	// tests have started, may be closed meanwhile.
	if !eventually(func() bool { return left().QueuePairs <= idle.QueuePairs }) {
		require.Equal(t, idle, inUse(t), "in use before and after the first few times, with links %+v", ringnet.Links())
	}
	before, mapped := inUse(t), memory()
	for i := range n {
		require.NoError(t, cycle(), "time %d", i)
	}
	if !eventually(func() bool { return left().atMost(before) }) {
		require.Equal(t, before, inUse(t), "in use before and after %d times", n)
	}
	// Memory that is not registered comes and goes with the Go heap and with threads. So it
	// is compared only with what a leak would be: the ring of each connection, and the rest
	// of its link if it had one of its own.
	after := memory()
	require.Less(t, after.mappings-mapped.mappings, 20+n, "lines in /proc/self/maps more than before")
	ring, _ := (*ringnet.Config)(nil).RingMemory()
	leaked := n * ring
	require.Less(t, after.resident-mapped.resident, max(leaked/2, 16<<20), "bytes of anonymous memory more than before")
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

// mem is the memory of a process.
type mem struct {
	mappings int
	resident int // bytes of anonymous memory
}

func memory() mem {
	runtime.GC()
	debug.FreeOSMemory()
	maps, _ := os.ReadFile("/proc/self/maps")
	return mem{strings.Count(string(maps), "\n"), status("RssAnon") << 10}
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

// connections connects, exchanges bytes and closes.
func connections(t *testing.T) func() error {
	l := listen(t, ringnet.ListenConfig{})
	return func() error {
		d, a, err := connect(l)
		if err != nil {
			return err
		}
		return errors.Join(echo(d, a), echo(a, d), d.Close(), a.Close())
	}
}

// cancelledDials cancels dials after different times.
func cancelledDials(t *testing.T) func() error {
	l := listen(t, ringnet.ListenConfig{})
	var after time.Duration
	return func() error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		after = (after + 500*time.Microsecond) % (20 * time.Millisecond)
		time.AfterFunc(after, cancel)
		c, err := (&ringnet.Dialer{}).DialContext(ctx, "rdma", l.Addr().String())
		if err != nil {
			return want(err, context.Canceled)
		}
		a, err := l.Accept()
		if err != nil {
			return err
		}
		return errors.Join(echo(c, a), c.Close(), a.Close())
	}
}

// closedListeners closes listeners that have a connection which nobody has accepted.
func closedListeners(t *testing.T) func() error {
	addr := net.JoinHostPort(rdmaAddr(t), "0")
	return func() error {
		l, err := ringnet.Listen("rdma", addr)
		if err != nil {
			return err
		}
		d, err := ringnet.Dial("rdma", l.Addr().String())
		if err != nil {
			return err
		}
		err = l.Close()
		_, read := d.Read(make([]byte, 1))
		return errors.Join(err, want(read, syscall.ECONNRESET), d.Close())
	}
}

// connect makes a connection and returns both ends.
func connect(l net.Listener) (dialer, accepter *ringnet.Conn, err error) {
	return connectWith(nil, l)
}

// connectWith is connect with a configuration of the dialer's.
func connectWith(cfg *ringnet.Config, l net.Listener) (dialer, accepter *ringnet.Conn, err error) {
	d, err := (&ringnet.Dialer{Config: cfg}).Dial("rdma", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	a, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
	return d.(*ringnet.Conn), a.(*ringnet.Conn), nil
}

// want returns nil if err is the one wanted.
func want(err, wanted error) error {
	if errors.Is(err, wanted) {
		return nil
	}
	return fmt.Errorf("%v: want %w", err, wanted)
}
