package rconn_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// slow returns a fabric whose PostSend takes a while, as soft-RoCE's does, in real time.
func slow(f fabric.Fabric) *hooked {
	return &hooked{Fabric: f, both: true, postSend: func(post func() error) error {
		err := post()
		for start := time.Now(); time.Since(start) < 20*time.Microsecond; {
		}
		return err
	}}
}

// Where posting takes so long that sends have completed when it returns, each Write finds
// the queue idle. Small Writes that come while the dispatcher posts still go together, and
// the last ones go too.
func TestSlowPostingMakesFewMessagesOfManySmallWrites(t *testing.T) {
	n := sim.New(sim.Link{})
	v := venue{Fabric: slow(n), addr: simAddr}
	c, s := v.connect(t, nil, nil)
	writes := v.times(20_000)
	atOnce(t, func() error {
		p := make([]byte, 64)
		for i := range writes {
			pattern(1).fill(p, i*len(p))
			if _, err := c.Write(p); err != nil {
				return err
			}
		}
		return nil
	}, func() error { return pattern(1).receiveExactly(s, 0, writes*64) })
	require.Less(t, c.Stats().MessagesSent, uint64(writes/4))
	require.Zero(t, n.RNR(), "receiver not ready")
}

func TestSlowPostingInBothDirections(t *testing.T) {
	for _, most := range []int{100, 3000, 200_000} {
		n := sim.New(sim.Link{Spin: 100})
		v := venue{Fabric: slow(n), addr: simAddr}
		c, s := v.connect(t, nil, tight)
		total := v.times(2000) * most / 10
		atOnce(t,
			func() error { return pattern(2).send(c, 0, total, most, rand.New(rand.NewPCG(1, 0))) },
			func() error { return pattern(3).send(s, 0, total, most, rand.New(rand.NewPCG(2, 0))) },
			func() error { return pattern(3).receiveExactly(c, 0, total) },
			func() error { return pattern(2).receiveExactly(s, 0, total) })
		atOnce(t, c.Close, s.Close)
		require.Zero(t, n.RNR(), "receiver not ready")
	}
}
