//go:build linux

package integration_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/hang"
)

// patient returns a configuration that waits for longer than any fault of TestHours lasts.
func patient() *ringnet.Config {
	return &ringnet.Config{KeepAlive: keepAlive, ResumeTimeout: time.Minute}
}

// TestHours runs on two machines joined by a cable, or on two hosts of ideal cards, for
// RINGNET_SOAK_HOURS hours, of which there may be a fraction: random traffic under random faults,
// both drawn from RINGNET_SOAK_SEED, or from the cards' seed. Connections and links come and go; none that is up may end before
// it is closed, and each byte is checked. Between rounds, once links have left, neither
// machine may hold more than it did at first.
func TestHours(t *testing.T) {
	if os.Getenv("RINGNET_SOAK_HOURS") == "" {
		t.Skip("RINGNET_SOAK_HOURS is not set; make soak-hours and make soak-card set it")
	}
	hours, err := strconv.ParseFloat(os.Getenv("RINGNET_SOAK_HOURS"), 64)
	require.NoError(t, err, "RINGNET_SOAK_HOURS, a number")
	require.Positive(t, hours, "RINGNET_SOAK_HOURS")
	onNodes(t, func() { serveNode(t, ringnet.ListenConfig{Config: patient(), Trace: lostLinks(t)}) })
	seed := uint64(time.Now().UnixNano())
	if given := cmp.Or(os.Getenv("RINGNET_SOAK_SEED"), os.Getenv("IDEAL_SEED")); given != "" {
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err, "RINGNET_SOAK_SEED, a number")
	}
	t.Log("RINGNET_SOAK_SEED", seed)
	h := &soak{t: t, second: time.Second, doublings: 5, faults: make(map[string]int)}
	if onCard() {
		h.second, h.doublings = time.Second/10, 7
	}
	waitForNode(t)
	h.round(rand.New(rand.NewPCG(seed, 0)), 10*h.second) // what the first round leaves stays
	first := h.rest(nil)
	t.Log("at first:", first)
	last := first
	for end, n := time.Now().Add(time.Duration(hours*float64(time.Hour))), uint64(1); time.Now().Before(end) && !t.Failed(); n++ {
		began := time.Now()
		h.round(rand.New(rand.NewPCG(seed, n)), 60*h.second)
		last = h.rest(&first)
		t.Logf("round %d, in %v: %v; %v", n, time.Since(began).Round(time.Second), h, last)
	}
	t.Logf("seed %d: %v; at first %v, at last %v", seed, h, first, last)
}

// soak is what TestHours does, and has done.
type soak struct {
	t         *testing.T
	second    time.Duration // by which rounds, faults and pauses are measured
	doublings int           // the longest fault takes half of 1<<doublings seconds
	rounds    int
	faults    map[string]int
}

func (h *soak) String() string {
	total := ringnet.Totals()["rdma"]
	return fmt.Sprintf("%d rounds, %d connections (dials that failed: %v), %d MB in %d messages, %d links, %d resumptions, faults: %v",
		h.rounds, total.Dialed, total.DialsFailed, (total.BytesSent+total.BytesReceived)>>20, total.MessagesSent+total.MessagesReceived,
		total.LinksMade, total.LinksMoved, h.faults)
}

// round has connections of all kinds at work, under faults, for at least so long.
func (h *soak) round(r *rand.Rand, length time.Duration) {
	h.rounds++
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 2 + r.IntN(12) {
		work := h.transfers
		if i%3 == 0 {
			work = h.talks
		}
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		all.Go(func() { work(own, stop) })
	}
	for end := time.Now().Add(length); time.Now().Before(end) && !h.t.Failed(); {
		time.Sleep(time.Duration(r.Int64N(int64(6 * h.second))))
		h.fault(r)
	}
	close(stop)
	all.Wait()
}

// fault breaks something for a while.
func (h *soak) fault(r *rand.Rand) {
	t := h.t
	long := time.Duration(r.IntN(int(h.second) << r.IntN(h.doublings)))
	var kind string
	switch x := r.IntN(10); {
	case x < 4:
		kind = "cable out"
		require.NoError(t, control("cable down"))
		time.Sleep(long)
		require.NoError(t, control("cable up"))
	case x < 9 && onCard(): // which loses no packets
		kind = "nothing coming through"
		require.NoError(t, control("path down"))
		time.Sleep(long)
		require.NoError(t, control("path up"))
	case x < 6:
		kind = "nothing coming through"
		require.NoError(t, netem("add", "loss", "100%"))
		time.Sleep(long)
		require.NoError(t, netem("delete"))
	case x < 8:
		kind = "packets lost"
		require.NoError(t, netem("add", "loss", fmt.Sprint(1+r.IntN(30), "%")))
		time.Sleep(long)
		require.NoError(t, netem("delete"))
	case x < 9:
		kind = "packets late, double and out of order"
		require.NoError(t, netem("add", "delay", "20ms", "20ms", "duplicate", "5%"))
		time.Sleep(long)
		require.NoError(t, netem("delete"))
	default:
		kind = "cable flapping"
		for range 2 + r.IntN(4) {
			require.NoError(t, control("cable down"))
			time.Sleep(time.Duration(r.IntN(int(2 * h.second))))
			require.NoError(t, control("cable up"))
			time.Sleep(time.Duration(r.IntN(int(2 * h.second))))
		}
	}
	h.faults[kind]++
}

// config draws a configuration.
func config(r *rand.Rand) *ringnet.Config {
	cfg := patient()
	cfg.Dedicated = r.IntN(6) == 0
	cfg.Links = 1 + r.IntN(2)
	if r.IntN(2) == 0 {
		cfg.RecvBuffer = 64 << 10 << r.IntN(4)
	}
	return cfg
}

// dial connects to node 1 and tells it what to do.
func (h *soak) dial(cfg *ringnet.Config, what string, seed uint64, n int) (*ringnet.Conn, error) {
	d := ringnet.Dialer{Config: cfg, Timeout: hang.After, Trace: lostLinks(h.t)}
	return order(&d, os.Getenv("SOFTROCE_PEER"), what, seed, n)
}

// lostLinks returns a trace that reports links which end for another reason than that
// nothing needs them, and links that move because a device has refused a message.
func lostLinks(t *testing.T) *ringnet.Trace {
	return &ringnet.Trace{
		LinkMoved: func(l ringnet.LinkInfo, _ time.Duration, cause error) {
			if errors.Is(cause, syscall.EPROTO) {
				t.Logf("a link from %v to %v has moved: %v", l.Local, l.Remote, cause)
			}
		},
		LinkDown: func(l ringnet.LinkInfo, cause error) {
			if cause != nil {
				t.Logf("a link from %v to %v, which has moved %d times, has ended: %v", l.Local, l.Remote, l.Moves, cause)
			}
		},
	}
}

// begin calls dial until it succeeds. It returns nil when the round is over.
func (h *soak) begin(r *rand.Rand, stop <-chan struct{}, what string, seed uint64, n int) *ringnet.Conn {
	for cfg := config(r); !h.t.Failed(); {
		select {
		case <-stop:
			return nil
		default:
		}
		if c, err := h.dial(cfg, what, seed, n); err == nil {
			h.failed("linger", c.SetLinger(linger))
			return c
		}
	}
	return nil
}

// failed keeps an error that must not be.
func (h *soak) failed(what string, err error) {
	if err != nil {
		h.t.Errorf("%s: %v", what, err)
	}
}

// transfers sends bytes one way, over one connection after the other.
func (h *soak) transfers(r *rand.Rand, stop <-chan struct{}) {
	for !h.t.Failed() {
		seed, n := r.Uint64(), 1+r.IntN(64<<10<<r.IntN(8))
		what, do := "send", fetch
		if r.IntN(2) == 0 {
			what, do = "receive", give
		}
		c := h.begin(r, stop, what, seed, n)
		if c == nil {
			return
		}
		h.failed(what, errors.Join(do(c, seed, n), c.Close()))
	}
}

// talks exchanges messages, with pauses in which the connection is idle.
func (h *soak) talks(r *rand.Rand, stop <-chan struct{}) {
	for !h.t.Failed() {
		seed := r.Uint64()
		c := h.begin(r, stop, "echo", seed, 0)
		if c == nil {
			return
		}
		out, back := &stream{seed: seed}, &stream{seed: seed}
		for range 1 + r.IntN(200) {
			n := 1 + r.IntN(1<<r.IntN(16))
			sent := make(chan error, 1)
			go func() { sent <- out.send(c, n, n) }()
			err := errors.Join(back.receive(c, n), <-sent)
			if h.failed("talk", err); err != nil {
				break
			}
			if r.IntN(10) == 0 {
				time.Sleep(time.Duration(r.Int64N(int64(3 * h.second))))
			}
			select {
			case <-stop:
				n = 0
			default:
			}
			if n == 0 {
				break
			}
		}
		h.failed("end of a talk", c.Close())
	}
}

// holding is what both machines have in use.
type holding [2]report

func (s holding) String() string {
	return fmt.Sprintf("node 0 %+v, node 1 %+v", s[0], s[1])
}

// atMost returns whether no more is in use than before, but for what comes and goes with
// the Go heap and with threads.
func (s holding) atMost(before holding) bool {
	for node, r := range s {
		r.Held.Goroutines -= 2
		if !r.Held.atMost(before[node].Held) || r.ResidentKiB-before[node].ResidentKiB > 32<<10 {
			return false
		}
	}
	return true
}

// rest waits until links are closed, and no more is in use than before, if before is given.
// It returns what is in use then.
func (h *soak) rest(before *holding) (s holding) {
	if !eventually(func() bool {
		ringnet.CloseIdleLinks()
		if len(ringnet.Links()) > 0 {
			return false
		}
		var err error
		if s, err = h.hold(); err != nil {
			return false
		}
		return s[1].Links <= 1 && (before == nil || s.atMost(*before))
	}) {
		h.t.Errorf("more is held than before: %v; links here: %+v; on node 1: %s", s, ringnet.Links(), h.stacks())
	}
	return s
}

// stacks returns the stacks of node 1.
func (h *soak) stacks() string {
	c, err := h.dial(&ringnet.Config{}, "stacks", 0, 0)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// hold asks both machines. The link on which node 1 is asked is one more than it would
// have. An error is that of the dial.
func (h *soak) hold() (s holding, err error) {
	cfg := patient()
	cfg.LinkIdle = -1
	c, err := h.dial(cfg, "state", 0, 0)
	if err != nil {
		return s, err
	}
	answer, err := io.ReadAll(c)
	require.NoError(h.t, err)
	require.NoError(h.t, json.Unmarshal(answer, &s[1]))
	require.NoError(h.t, c.Close())
	require.True(h.t, eventually(func() bool { return len(ringnet.Links()) == 0 }))
	time.Sleep(time.Second) // until the background has closed what is left
	s[0] = reported()
	return s, nil
}
