package rconn_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// slowFabric's PostSend takes a while, as soft-RoCE's does, in real time.
type slowFabric struct{ fabric.Fabric }

const slowTime = 20 * time.Microsecond

func (f slowFabric) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return slowEndpoint{ep}, err
}

func (f slowFabric) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	l, err := f.Fabric.Listen(local, backlog)
	return slowListener{l}, err
}

type slowListener struct{ fabric.Listener }

func (l slowListener) Accept() (fabric.Endpoint, error) {
	ep, err := l.Listener.Accept()
	return slowEndpoint{ep}, err
}

type slowEndpoint struct{ fabric.Endpoint }

func (e slowEndpoint) PostSend(wr []fabric.WorkRequest) error {
	err := e.Endpoint.PostSend(wr)
	for start := time.Now(); time.Since(start) < slowTime; {
	}
	return err
}

// Where posting takes so long that sends have completed when it returns, each Write finds
// the queue idle. Small Writes that come while the dispatcher posts still go together, and
// the last ones go too.
func TestSlowPostingMakesFewMessagesOfManySmallWrites(t *testing.T) {
	n := sim.New(sim.Link{})
	v := venue{Fabric: slowFabric{n}, addr: simAddr}
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
		v := venue{Fabric: slowFabric{n}, addr: simAddr}
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
