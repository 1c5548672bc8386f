//go:build linux

package integration_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// patient returns a configuration that waits for longer than any fault of TestHours lasts, and does not
// wait long to notice one.
func patient() *ringnet.Config {
	return &ringnet.Config{KeepAlive: time.Second, ResumeTimeout: time.Minute, Linger: time.Minute}
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
	n := obeyed(t)
	n.there("start: patient")
	seed := uint64(time.Now().UnixNano())
	if given := cmp.Or(os.Getenv("RINGNET_SOAK_SEED"), os.Getenv("IDEAL_SEED")); given != "" {
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err, "RINGNET_SOAK_SEED, a number")
	}
	t.Log("RINGNET_SOAK_SEED", seed)
	h := &soak{nodes: n, second: time.Second, doublings: 5, faults: make(map[string]int)}
	if onCard() {
		h.second, h.doublings = time.Second/10, 7
	}
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
	nodes
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
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		all.Go(func() { h.work(own, stop, i%3 == 0) })
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
	long := time.Duration(r.IntN(int(h.second) << r.IntN(h.doublings)))
	var kind string
	netem := func(what, how string) {
		kind = what
		h.here(netem("add", how))
		time.Sleep(long)
		h.here(netem("delete", ""))
	}
	switch x := r.IntN(10); {
	case x < 4:
		kind = "cable out"
		h.cut("cable", "", long)
	case x < 9 && onCard(): // which loses no packets
		kind = "nothing coming through"
		h.cut("path", "", long)
	case x < 6:
		netem("nothing coming through", "loss 100%")
	case x < 8:
		netem("packets lost", fmt.Sprintf("loss %d%%", 1+r.IntN(30)))
	case x < 9:
		netem("packets late, double and out of order", "delay 20ms 20ms duplicate 5%")
	default:
		kind = "cable flapping"
		for range 2 + r.IntN(4) {
			h.cut("cable", "", time.Duration(r.IntN(int(2*h.second))))
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

// begin connects to node 1. It returns nil when the round is over.
func (h *soak) begin(r *rand.Rand, stop <-chan struct{}) *talker {
	d, seed := ringnet.Dialer{Config: config(r), Timeout: hang.After}, r.Uint64()
	for !h.t.Failed() && !over(stop) {
		if c, err := visit(&d, os.Getenv("SOFTROCE_PEER"), seed); err == nil {
			return c
		}
	}
	return nil
}

func over(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// work makes one connection after the other: it sends bytes one way, or exchanges messages, with pauses in
// which the connection is idle.
func (h *soak) work(r *rand.Rand, stop <-chan struct{}, talks bool) {
	for {
		c := h.begin(r, stop)
		if c == nil {
			return
		}
		var err error
		if !talks {
			up, down := 1+r.IntN(64<<10<<r.IntN(8)), 1
			if r.IntN(2) == 0 {
				up, down = down, up
			}
			err = c.exchange(up, down)
		}
		for left := 1 + r.IntN(200); talks && left > 0 && err == nil && !over(stop); left-- {
			n := 1 + r.IntN(1<<r.IntN(16))
			err = c.exchange(n, n)
			if r.IntN(10) == 0 {
				time.Sleep(time.Duration(r.Int64N(int64(3 * h.second))))
			}
		}
		if err = errors.Join(err, c.leave()); err != nil {
			h.t.Errorf("talks %t: %v", talks, err)
		}
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
		if !r.Held.atMost(before[node].Held) || r.ResidentKiB-before[node].ResidentKiB > shadow*32<<10 {
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
		time.Sleep(time.Second) // until the background has closed what is left
		s[0] = reported()
		h.ask("state", &s[1])
		return s[1].Links == 0 && (before == nil || s.atMost(*before))
	}) {
		var stacks string
		h.ask("stacks", &stacks)
		h.t.Errorf("more is held than before: %v; links here: %+v; on node 1: %s", s, ringnet.Links(), stacks)
	}
	return s
}
