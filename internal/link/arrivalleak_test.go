package link

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// A link that has said GOAWAY and waits for the peer's has a request of the peer's instead. Its
// queue pair gives nothing back, so idleTick ends the link before drainTick would. The request is
// refused all the same, and its endpoint closed.
func TestARequestOnALinkThatIdleTickEndsIsRefused(t *testing.T) {
	besideAReturner(t, func(t *testing.T, s *Stream, p *returner) {
		require.NoError(t, s.CloseWrite())
		time.Sleep(100 * time.Millisecond)
		p.poll()
		p.last(credit.FinRecord)
		p.control(wire.Record{Type: credit.FinRecord}, record(credit.FinAckRecord, 0))
		require.NoError(t, s.Close(time.Second))
		time.Sleep(s.link.cfg.LinkIdle)
		time.Sleep(100 * time.Millisecond)
		p.poll()
		p.last(credit.GoAwayRecord)
		time.Sleep(3 * time.Second)
		require.False(t, isGone(s.link))
		passive := endpointOf(s.link)
		p.n.SetFaults(sim.Faults{Unflushed: func(e *sim.Endpoint) bool { return e == passive }})
		ep, err := p.n.Dial(context.Background(), netip.AddrPort{}, p.at)
		require.NoError(t, err)
		defer ep.Close()
		openRaw(t, ep)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m := wire.Resumption{Kind: wire.ResumeRequest, Link: p.told.Link, Attempt: 1}
		_, err = ep.Connect(ctx, m.Append(nil, wire.Seal{Secret: p.told.Secret, From: ep.LocalAddr().Addr(), To: ep.RemoteAddr().Addr()}))
		require.True(t, isGone(s.link))
		if !rejected(err) {
			t.Errorf("the request is not refused: %v", err)
		}
	})
}
