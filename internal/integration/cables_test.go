//go:build linux

package integration_test

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/hang"
)

// TestTwoCables runs on two machines joined by two cables, with an RDMA device at each.
// Node 1 serves node 0.
func TestTwoCables(t *testing.T) {
	if os.Getenv("SOFTROCE_SECOND_PEER") == "" {
		t.Skip("SOFTROCE_SECOND_PEER is not set; bin/softroce -nodes 2 -cables 2 runs this where there are two nodes with two cables")
	}
	if os.Getenv("SOFTROCE_NODE") == "1" {
		serveNode(t)
		return
	}
	t.Cleanup(func() { require.NoError(t, control("power off 1")) })
	waitForNode(t)
	for name, out := range map[string]struct{ begin, end func() error }{
		"cut":                     {func() error { return control("cable down 0") }, func() error { return control("cable up 0") }},
		"letting nothing through": {func() error { return netem("add", "loss", "100%") }, func() error { return netem("delete") }},
	} {
		t.Run("the first "+name+" under sixteen transfers", func(t *testing.T) {
			requireMove(t, out.begin)
			require.NoError(t, out.end())
		})
	}
}

// requireMove makes a link lose its path while it carries transfers both ways, and requires
// that it goes on over its standby, at the other cable.
func requireMove(t *testing.T, lose func() error) {
	t.Helper()
	peer := requireEnv(t, "SOFTROCE_PEER")
	require.True(t, eventually(func() bool { // a link that has moved is at the other cable
		ringnet.CloseIdleLinks()
		return len(ringnet.Links()) == 0
	}))
	n := times(4<<20, 64<<20)
	moves := make(chan move, 16)
	d := ringnet.Dialer{
		Config: &ringnet.Config{KeepAlive: keepAlive, Links: 1},
		Trace: &ringnet.Trace{LinkMoved: func(_ ringnet.LinkInfo, waited time.Duration, cause error) {
			moves <- move{time.Now(), waited, cause}
		}},
	}
	undisturbed := beginSixteen(t, &d, peer, n)
	atOnce(t, undisturbed.all...)
	transfers := beginSixteen(t, &d, peer, n)
	l := transfers.reading[0].Conn
	require.True(t, eventually(func() bool { return l.Link().Standby != ringnet.Path{} }), "no standby")
	standby := l.Link().Standby
	require.Equal(t, requireEnv(t, "SOFTROCE_SECOND_ADDR"), standby.Local.AddrPort().Addr().String())
	require.Equal(t, requireEnv(t, "SOFTROCE_SECOND_PEER"), standby.Remote.AddrPort().Addr().String())
	var lost time.Time
	var m move
	atOnce(t, append(transfers.all, func() error {
		<-transfers.started
		err := lose()
		lost = time.Now()
		select {
		case m = <-moves:
			return err
		case <-time.After(hang.After):
			return errors.Join(err, errors.New("the link has not moved"))
		}
	})...)
	require.Equal(t, standby, l.Link().Path)
	t.Logf("found after %v, and moved %v later: %v; the longest pause was %v, and %v without a fault",
		m.at.Add(-m.waited).Sub(lost), m.waited, m.cause, transfers.pause(), undisturbed.pause())
}

// sixteen are sixteen transfers, eight in each direction.
type sixteen struct {
	all     []func() error
	reading []*clocked
	started chan struct{} // closed when the first transfer has begun
}

// beginSixteen connects for transfers of n bytes each.
func beginSixteen(t *testing.T, d *ringnet.Dialer, peer string, n int) *sixteen {
	t.Helper()
	all := &sixteen{started: make(chan struct{})}
	start := sync.OnceFunc(func() { close(all.started) })
	ask := func(what string) *ringnet.Conn { return askWith(t, d, peer, what, n) }
	for range 8 {
		push, down := ask("receive"), &clocked{Conn: ask("send")}
		all.reading = append(all.reading, down)
		all.all = append(all.all,
			func() error { return give(push, n) },
			func() error {
				s := &stream{seed: seedFetched}
				if err := s.receive(down, 64<<10); err != nil {
					return err
				}
				start()
				return s.receiveAll(down, n-64<<10)
			})
	}
	return all
}

// pause returns the longest wait of a Read.
func (all *sixteen) pause() (longest time.Duration) {
	for _, c := range all.reading {
		longest = max(longest, c.longest)
	}
	return longest
}

// move is a move of a link: when it happened, how long it took, and why.
type move struct {
	at     time.Time
	waited time.Duration
	cause  error
}

// clocked is a connection that measures the longest wait of its Reads.
type clocked struct {
	*ringnet.Conn
	longest time.Duration
}

func (c *clocked) Read(p []byte) (int, error) {
	began := time.Now()
	defer func() { c.longest = max(c.longest, time.Since(began)) }()
	return c.Conn.Read(p)
}
