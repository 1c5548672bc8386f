//go:build linux

package integration_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPorts runs on two hosts of ideal cards, which have two ports each, for RINGNET_SOAK_PORTS, a time such as
// 1h. Two processes dial a third all the time, write a little and close, while ports, cables and paths are out for
// a while: those that the test takes down, and those that go by themselves within Dial and Close (idealcard's
// -faults). All is drawn from RINGNET_SOAK_SEED, or the cards' seed. Each path is back long before ResumeTimeout,
// so of each connection that Dial has returned the peer must read all that Write and Close have
// taken, and the end of it; nothing but Dial may fail, and that with no error that says that nobody listens.
func TestPorts(t *testing.T) {
	if os.Getenv("RINGNET_SOAK_PORTS") == "" {
		t.Skip("RINGNET_SOAK_PORTS is not set; make soak-ports sets it")
	}
	long, err := time.ParseDuration(os.Getenv("RINGNET_SOAK_PORTS"))
	require.NoError(t, err, "RINGNET_SOAK_PORTS, a time")
	n := obeyed(t)
	n.there("start: ports")
	seed := uint64(time.Now().UnixNano())
	if given := cmp.Or(os.Getenv("RINGNET_SOAK_SEED"), os.Getenv("IDEAL_SEED")); given != "" {
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err, "RINGNET_SOAK_SEED, a number")
	}
	p := &ports{nodes: n, faults: make(map[string]int), failed: make(map[string]int)}
	for i := range p.clients {
		p.clients[i] = start(t, "ports client", os.Getenv("SOFTROCE_PEER"), os.Getenv("SOFTROCE_SECOND_PEER"))
		require.Equal(t, "done", p.clients[i].hear())
	}
	round := uint64(0)
	for end := time.Now().Add(long); time.Now().Before(end) && !t.Failed(); round++ {
		p.round(rand.New(rand.NewPCG(seed, round)), round, min(15*time.Second, long))
		if round%20 == 0 || t.Failed() {
			t.Logf("seed %d, round %d: %v", seed, round, p)
		}
	}
	t.Logf("seed %d: %v", seed, p)
	require.True(t, p.moves > 0 || long < time.Minute, "links have gone on over another queue pair")
}

// ports is what TestPorts does, and has seen.
type ports struct {
	nodes
	clients [2]*process
	dialed  int
	bytes   int
	moves   uint64         // of links, at all ends
	failed  map[string]int // dials, by their error
	unmet   int            // connections that the server has accepted, and that dials have left before they had them

	mu     sync.Mutex // guards what follows, and is held while the cards are told
	faults map[string]int
}

func (p *ports) String() string {
	return fmt.Sprintf("%d connections, %d MB, %d resumptions, faults beside the cards' own: %v, dials that failed: %v, left and accepted: %d",
		p.dialed, p.bytes>>20, p.moves, p.faults, p.failed, p.unmet)
}

// round has both clients dial for a while, under faults, and compares what the ends have seen.
func (p *ports) round(r *rand.Rand, number uint64, length time.Duration) {
	for i, c := range p.clients {
		c.say(fmt.Sprint(number<<32|uint64(i)<<31, " ", r.Uint64(), " ", length))
	}
	var faults sync.WaitGroup
	for range 2 {
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		faults.Go(func() { p.trouble(own, time.Now().Add(length)) })
	}
	faults.Wait()
	var dialed portsReport
	for _, c := range p.clients {
		var one portsReport
		require.NoError(p.t, json.Unmarshal([]byte(c.hear()), &one))
		dialed.add(&one)
	}
	var accepted portsReport
	p.ask(fmt.Sprint("report ", len(dialed.Ends)), &accepted)
	p.compare(&dialed, &accepted)
}

// trouble takes something down for a while, again and again.
func (p *ports) trouble(r *rand.Rand, until time.Time) {
	tell := func(request string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		require.NoError(p.t, control(request))
	}
	cards := []string{os.Getenv("SOFTROCE_DEVICE"), os.Getenv("SOFTROCE_SECOND_DEVICE"), os.Getenv("SOFTROCE_PEER_DEVICE"), os.Getenv("SOFTROCE_SECOND_PEER_DEVICE")}
	for time.Now().Before(until) {
		what, which := "port", cards[r.IntN(len(cards))]
		if x := r.IntN(10); x < 4 {
			what, which = []string{"cable", "path"}[x%2], strconv.Itoa(r.IntN(2))
		}
		tell(what + " down " + which)
		time.Sleep(time.Duration(r.IntN(int(5*time.Millisecond) << r.IntN(11))))
		tell(what + " up " + which)
		time.Sleep(time.Duration(r.IntN(int(time.Second))))
		p.mu.Lock()
		p.faults[what]++
		p.mu.Unlock()
	}
}

// compare sees that the two ends of each connection agree.
func (p *ports) compare(dialed, accepted *portsReport) {
	p.dialed += len(dialed.Ends)
	p.moves += dialed.Moves + accepted.Moves
	p.unmet += accepted.Unmet
	for what, n := range dialed.Failed {
		p.failed[what] += n
	}
	for _, what := range dialed.Wrong {
		p.t.Error("a dial failed with what no dial may: ", what)
	}
	for _, what := range accepted.Strangers {
		p.t.Errorf("accepted, though no dial has had it: %v; what became of its link, and of dials:\n%s", what,
			strings.Join(slices.Concat(accepted.of(what), dialed.of(what), dialed.failedDials()), "\n"))
	}
	for id, d := range dialed.Ends {
		a, ok := accepted.Ends[id]
		p.bytes += d.Up + d.Down
		switch {
		case !ok:
			p.t.Errorf("connection %#x, which the server has not accepted: %v", id, d)
		case d.Error != "" || a.Error != "":
			p.t.Errorf("connection %#x: %v; at the server: %v", id, d, a)
		default:
			continue
		}
		p.t.Logf("what became of its link:\n%s", strings.Join(slices.Concat(dialed.of(d), accepted.of(d)), "\n"))
	}
}
