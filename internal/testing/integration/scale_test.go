//go:build linux

package integration_test

import (
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
)

// scale is how much there is of what a listener may have many of.
type scale struct {
	name        string
	processes   int
	connections int // of each process
	links       int // of each process
}

// TestScale has many processes dial one listener, many connections between two processes, and many
// links between two. What ringnet says of its memory and its work requests is what the card has
// counted. RINGNET_SOAK has it in full.
func TestScale(t *testing.T) {
	if !onCard() {
		t.Skip("only tools/idealcard counts what is registered and posted")
	}
	require.True(t, eventually(func() bool { // what tests before this one have left
		ringnet.CloseIdleLinks()
		return resources(t)["qp"] == 0
	}))
	for _, s := range []scale{
		{"processes", times(40, 1000), 1, 1},
		{"connections", 1, times(1000, 10_000), 1},
		{"links", 1, times(160, 640), times(16, 64)},
	} {
		t.Run(s.name, func(t *testing.T) {
			alone(t, nil, s.require)
		})
	}
}

// Each connection has a message of so many bytes echoed so often.
const (
	exchanges   = 3
	messageSize = 100
)

// clientStaging is the staging memory of a process that is one of many.
const clientStaging = 64 << 10

// deviceQueues are the bytes of a link's queues, at one end, as ringnet counts them.
var deviceQueues = fabric.DeviceQueues(64, 176+credit.LinkControlReceives)

// tally is what the links of processes have, and what they have done.
type tally struct {
	Links, Connections, Memory, Used int
	Requests, Messages, Control      uint64
}

func tallied() (sum tally) {
	sum.Used = ringnet.Memory().Used
	for _, l := range ringnet.Links() {
		sum.add(tally{1, l.Connections, l.Memory, 0, l.WorkRequests, l.MessagesSent, l.ControlSent})
	}
	return sum
}

func (a *tally) add(b tally) {
	a.Links += b.Links
	a.Connections += b.Connections
	a.Memory += b.Memory
	a.Used += b.Used
	a.Requests += b.Requests
	a.Messages += b.Messages
	a.Control += b.Control
}

func (s scale) config() *ringnet.Config {
	return &ringnet.Config{SendBuffer: clientStaging, Links: s.links, KeepAlive: -1}
}

func (s scale) require(t *testing.T) {
	l := listen(t, ringnet.ListenConfig{Config: s.config()})
	go echoAll(l)
	var all []*process
	for len(all) < s.processes {
		const atOnce = 10 // begin
		begun := all
		for range min(atOnce, s.processes-len(all)) {
			all = append(all, start(t, "many", l.Addr().String(), strconv.Itoa(s.connections), strconv.Itoa(s.links)))
		}
		for _, p := range all[len(begun):] {
			require.Equal(t, "done", p.hear())
		}
	}
	connections := s.processes * s.connections
	var own, theirs tally
	var card counted
	agree := eventually(func() bool { // once all is there that was under way
		own, theirs = tallied(), tally{}
		for _, p := range all {
			p.say("report")
			var one tally
			require.NoError(t, json.Unmarshal([]byte(p.hear()), &one))
			theirs.add(one)
		}
		card = statistic(t)
		memory := own.Memory + theirs.Memory // with the device's queues, which the card does not count
		links := own.Links + theirs.Links
		return own.Links == theirs.Links && own.Memory == own.Used && theirs.Memory == theirs.Used &&
			card.Requests == own.Requests+theirs.Requests && resources(t)["qp"] == links &&
			card.Registered <= memory && card.Registered >= memory-links*deviceQueues
	})
	t.Logf("here %+v; there %+v; the card %+v", own, theirs, card)
	require.True(t, agree, "what the card has counted is what ringnet says")
	// One dial at a time makes a link beyond the first, and meanwhile others use those that there are.
	links := theirs.Links
	require.LessOrEqual(t, links, s.processes*s.links)
	require.GreaterOrEqual(t, links, s.processes*max(1, s.links/4))
	for _, side := range []tally{own, theirs} {
		require.Equal(t, links, side.Links)
		require.Equal(t, connections, side.Connections)
		// Staging and receives of each link, and the rings, which are registered as many at a time as there are.
		ring, _ := s.config().RingMemory()
		require.LessOrEqual(t, side.Memory, links*s.config().PinnedMemory()+2*connections*ring)
		// A message is one request, or two where the staging memory ends.
		turns := links + exchanges*connections*messageSize/clientStaging
		require.LessOrEqual(t, side.Messages, uint64(exchanges*connections+turns))
		require.LessOrEqual(t, side.Requests, side.Messages+side.Control)
		require.LessOrEqual(t, side.Control, uint64((exchanges+2)*connections+links))
	}
}

// many dials connections, has messages echoed on each of them, and keeps them.
func many(args []string) error {
	connections, _ := strconv.Atoi(args[1])
	links, _ := strconv.Atoi(args[2])
	d := ringnet.Dialer{Config: scale{links: links}.config()}
	// Who dials while a link is being made uses those that there are.
	atOnce := max(1, 16/links)
	errs := make([]error, atOnce)
	kept := make([]net.Conn, connections)
	var all sync.WaitGroup
	for i := range atOnce {
		all.Go(func() {
			for at := i; at < connections && errs[i] == nil; at += atOnce {
				kept[at], errs[i] = d.Dial("rdma", args[0])
				for n := 0; n < exchanges && errs[i] == nil; n++ {
					errs[i] = echoed(kept[at], messageSize)
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	say("done")
	for hear() == "report" {
		b, err := json.Marshal(tallied())
		if err != nil {
			return err
		}
		say(string(b))
	}
	for _, c := range kept {
		c.Close()
	}
	return nil
}

// counted is what the card has counted.
type counted struct {
	Requests   uint64
	Registered int
}

func statistic(t testing.TB) (sum counted) {
	t.Helper()
	out, err := exec.Command("rdma", "-j", "statistic", "show").Output()
	require.NoError(t, err)
	var cards []counted
	require.NoError(t, json.Unmarshal(out, &cards), "%s", out)
	for _, c := range cards {
		sum.Requests += c.Requests
		sum.Registered += c.Registered
	}
	return sum
}
