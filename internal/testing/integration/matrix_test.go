//go:build linux

package integration_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fault is a row of the matrix.
type fault struct {
	name string
	make func(m *matrix) // returns when the fault is over, or lasts for good

	// What is promised of the connections: that they go on, or the errno with which they
	// end.
	ends string

	// How long connections have to pause at least: there is no way around this fault.
	pauses time.Duration

	// What else happens to the two nodes.
	unprivileged bool // neither process may lock more memory than it has locked
	gone         bool // the server has ended, and cannot report
	renew        bool // the devices must be made anew before the next row
	kernel       bool // only a kernel does this: the ideal card loses no packets and locks no memory
}

var faults = []fault{
	{name: "none", make: func(m *matrix) { time.Sleep(5 * time.Second) }},
	{name: "cable 1 out for 1 s", make: func(m *matrix) { m.cut("cable", "0", time.Second) }},
	{name: "cable 1 out for 5 s", make: func(m *matrix) { m.cut("cable", "0", 5*time.Second) }},
	{name: "cable 1 out for 20 s", make: func(m *matrix) { m.cut("cable", "0", 20*time.Second) }},
	{name: "cable 1 out for good", make: func(m *matrix) { m.control("cable down 0") }},
	{name: "both cables out for 5 s", pauses: 5 * time.Second, make: func(m *matrix) { m.cut("cable", "", 5*time.Second) }},
	{name: "both cables out for 20 s", pauses: 20 * time.Second, make: func(m *matrix) { m.cut("cable", "", 20*time.Second) }},
	{name: "both cables out and in every 2 s, for 20 s", make: func(m *matrix) {
		for range 5 {
			m.cut("cable", "", 2*time.Second)
			time.Sleep(2 * time.Second)
		}
	}},
	{name: "1 % of all packets lost, for 15 s", kernel: true, make: func(m *matrix) { m.netem("loss 1%", 15*time.Second) }},
	{name: "5 % of all packets lost, for 15 s", kernel: true, make: func(m *matrix) { m.netem("loss 5%", 15*time.Second) }},
	{name: "delays of 0 to 100 ms, so that packets overtake each other, and 1 % of them twice, for 15 s", kernel: true, make: func(m *matrix) {
		m.netem("delay 50ms 50ms duplicate 1%", 15*time.Second)
	}},
	{name: "the dialer's device 1 removed", renew: true, make: func(m *matrix) { m.remove(0) }},
	{name: "the listener's device 1 removed", renew: true, make: func(m *matrix) { m.remove(1) }},
	{name: "the dialer's port 1 down for 5 s", renew: true, make: func(m *matrix) { m.portDown(5 * time.Second) }},
	{name: "the listener stopped for 8 s", pauses: 8 * time.Second, make: func(m *matrix) {
		m.signal(unix.SIGSTOP)
		time.Sleep(8 * time.Second)
		m.signal(unix.SIGCONT)
	}},
	{name: "the listener killed", ends: "ECONNRESET", gone: true, make: func(m *matrix) { m.signal(unix.SIGKILL) }},
	{name: "the listener's node without power for a while", ends: "ETIMEDOUT", gone: true, make: func(m *matrix) { m.control("power cycle 1") }},
	{name: "no more memory can be locked", unprivileged: true, kernel: true, make: func(m *matrix) { time.Sleep(5 * time.Second) }},
}

// TestMatrix has connections of all kinds, over rdma and over TCP, go through one fault
// after the other, on two machines that two cables join. It requires what is promised of
// rdma, and prints a table of what happened to both. Node 1 obeys node 0.
func TestMatrix(t *testing.T) {
	if os.Getenv("SOFTROCE_SECOND_PEER") == "" {
		t.Skip("SOFTROCE_SECOND_PEER is not set; bin/softroce -nodes 2 -cables 2 runs this where there are two nodes with two cables")
	}
	onNodes(t, func() { obey(t) })
	var table strings.Builder
	fmt.Fprintf(&table, "| fault | ringnet | TCP |\n|---|---|---|\n")
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if f.kernel && onCard() {
				t.Skip("the ideal card loses no packets and locks no memory")
			}
			m := &matrix{nodes: nodes{t}}
			m.await()
			seen := m.run(&f)
			fmt.Fprintf(&table, "| %s | %s | %s |\n", f.name, outcome(seen["rdma"]), outcome(seen["tcp"]))
			if dir := os.Getenv("SOFTROCE_SCRATCH"); dir != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "matrix.md"), []byte(table.String()), 0o644))
			}
			longest := time.Duration(0)
			for _, side := range seen["rdma"] {
				for _, s := range side {
					require.Equal(t, f.ends, s.Error, "%s after %d bytes", s.Kind, s.Bytes)
					longest = max(longest, s.Pause)
				}
			}
			require.GreaterOrEqual(t, longest, f.pauses, "the longest pause")
			for _, side := range seen["tcp"] {
				for _, s := range side {
					require.NotContains(t, s.Error, "wrong", "%s", s.Kind)
				}
			}
		})
	}
	t.Logf("\n%s", &table)
}

// sightings is what each side has observed of the connections of a network.
type sightings [][]*observed

// outcome is a cell of the table.
func outcome(seen sightings) string {
	all, over := map[string]int{}, map[string]time.Duration{}
	for i, side := range seen {
		for _, s := range side {
			if i == 0 {
				all[s.Error]++
			}
			over[s.Error] = max(over[s.Error], s.Pause)
		}
	}
	var cells []string
	for _, err := range slices.Sorted(maps.Keys(all)) {
		what := fmt.Sprintf("%d end with %s after", all[err], err)
		switch err {
		case "":
			what = fmt.Sprintf("%d go on, longest pause", all[err])
		case stillWaits:
			what = fmt.Sprintf("%d still wait after", all[err])
		}
		cells = append(cells, fmt.Sprintf("%s %.1f s", what, over[err].Seconds()))
	}
	return strings.Join(cells, "; ")
}

// matrix is what a row works with, on node 0.
type matrix struct {
	nodes
	client *process
}

// run has the traffic go through a fault. It returns what the client has observed of each
// network, and the server, too, if it has not ended.
func (m *matrix) run(f *fault) map[string]sightings {
	t := m.t
	t.Helper()
	var as *syscall.SysProcAttr
	if f.unprivileged {
		as = nobody
		m.here("chmod a+rw /dev/infiniband/*")
		m.there("sh: chmod a+rw /dev/infiniband/*")
		m.there("start: nobody")
	} else {
		m.there("start")
	}
	m.client = startAs(t, as, "traffic client", os.Getenv("SOFTROCE_PEER"))
	require.Equal(t, "done", m.client.hear())
	if f.unprivileged {
		noMoreMemory(t, m.client)
		m.there("no more memory")
	}
	m.client.tell("begin")
	m.client.tell("flow")
	time.Sleep(quiet)
	m.client.tell("restart")
	m.there("tell: restart")
	f.make(m)
	settle := "flow"
	if f.ends != "" {
		settle = "end"
	}
	m.client.say(settle)
	if settled := m.client.hear(); settled != "done" {
		t.Log("waiting: ", settled)
	}
	m.client.say("finish")
	reports := []string{m.client.hear()}
	m.client.wait()
	m.control("cable up")
	if f.gone {
		m.await()
	} else {
		reports = append(reports, m.there("ask: report"))
	}
	m.there("stop")
	if f.renew {
		m.renew()
	}
	seen := map[string]sightings{}
	for _, r := range reports {
		var members []*observed
		require.NoError(t, json.Unmarshal([]byte(r), &members), "%s", r)
		sides := map[string][]*observed{}
		for _, s := range members {
			sides[s.Network] = append(sides[s.Network], s)
			t.Logf("%s %s: %d bytes, pause %v, %s %s", s.Network, s.Kind, s.Bytes, s.Pause, s.Error, s.Cause)
		}
		for network, side := range sides {
			seen[network] = append(seen[network], side)
		}
	}
	return seen
}

// quiet is for how long the traffic flows before the fault.
const quiet = 3 * time.Second

// noMoreMemory has a process lock no more memory than it has locked.
func noMoreMemory(t *testing.T, p *process) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(text), "VmPin:")
	var pinned uint64
	_, err = fmt.Sscan(after, &pinned)
	require.NoError(t, err)
	limit := unix.Rlimit{Cur: pinned << 10, Max: pinned << 10}
	require.NoError(t, unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_MEMLOCK, &limit, nil))
}

// nobody is a user whose locked memory is limited.
var nobody = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}

// netem changes for a while what both nodes send, over both cables.
func (m *matrix) netem(how string, d time.Duration) {
	m.t.Helper()
	set := func(command string) {
		m.here(command)
		m.there("sh: " + command)
	}
	set(netem("add", how))
	time.Sleep(d)
	set(netem("delete", ""))
}

// onCard reports whether the devices are ideal cards, which the control port removes and returns.
func onCard() bool { return os.Getenv("IDEAL_FABRIC") != "" }

// firstDevices are the devices at the first cable, by node.
func firstDevices() [2]string {
	return [2]string{os.Getenv("SOFTROCE_DEVICE"), os.Getenv("SOFTROCE_PEER_DEVICE")}
}

// remove removes a node's first device.
func (m *matrix) remove(node int) {
	m.t.Helper()
	switch {
	case onCard():
		m.control("card remove " + firstDevices()[node])
	case node == 0:
		m.here(remove())
	default:
		m.there("sh: " + remove())
	}
}

// renew makes the first devices of both nodes anew.
func (m *matrix) renew() {
	m.t.Helper()
	if !onCard() {
		m.here(renew())
		m.there("sh: " + renew())
		return
	}
	for _, device := range firstDevices() {
		m.control("card return " + device)
	}
}

// remove returns a command that begins to remove the first device. Soft-RoCE finishes that
// only when every process has closed what it has of the device.
func remove() string {
	return fmt.Sprintf("flock %s rdma link delete %s >%[1]s 2>&1 &", removal, os.Getenv("SOFTROCE_DEVICE"))
}

// removal is a file that is locked while a device is being removed.
const removal = "/run/removal"

// renew returns a command that makes the first device anew. If the device is being removed,
// it waits for that first.
func renew() string {
	device, netdev := os.Getenv("SOFTROCE_DEVICE"), os.Getenv("SOFTROCE_NETDEV")
	return fmt.Sprintf("flock %s true; rdma link delete %s; rdma link add %[2]s type rxe netdev %s && "+
		"until grep -q ACTIVE /sys/class/infiniband/%[2]s/ports/1/state; do sleep 0.1; done", removal, device, netdev)
}

// portDown takes down the first interface of this node for a while. Soft-RoCE's connection
// manager does not recover from that until the device is made anew.
func (m *matrix) portDown(d time.Duration) {
	m.t.Helper()
	set := func(how string) {
		if onCard() {
			m.control("port " + how + " " + firstDevices()[0])
		}
		setLink(m.t, os.Getenv("SOFTROCE_NETDEV"), how)
	}
	set("down")
	time.Sleep(d)
	set("up")
}

func (m *matrix) signal(s syscall.Signal) {
	m.t.Helper()
	m.there(fmt.Sprintf("signal: %d", s))
}
