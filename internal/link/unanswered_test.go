package link

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// A peer that has received the RESETs of streams and does not answer keeps their rings no
// longer than the link, which ends.
func TestAPeerThatDoesNotAnswerResetsEndsItsLink(t *testing.T) {
	for name, deaf := range map[string]bool{"it acknowledges them": false, "it says nothing": true} {
		t.Run(name, func(t *testing.T) {
			besideARawDialer(t, func(t *testing.T, first *Stream, p *rawPeer, b *backlog) {
				p.deaf = deaf
				number := uint32(0)
				open := func() *Stream {
					number++
					p.control(wire.Record{Type: wire.OpenRecord, Stream: number, Ring: p.place(), Port: uint16(40000 + number)})
					s := b.accept()
					require.Equal(t, number, p.last(wire.AcceptRecord).Stream)
					return s
				}
				for range 3 {
					require.NoError(t, open().Close(0))
					require.Equal(t, number, p.last(wire.ResetRecord).Stream)
				}
				time.Sleep(patience * 3 / 2)
				if !deaf {
					defer open().Close(0)
				}
				time.Sleep(patience)
				require.ErrorContains(t, writeAll(first, []byte("x")), "RESET")
			})
		})
	}
}

// A peer that is stopped answers when it goes on, and none of its connections has ended.
func TestAStoppedPeerAnswersResetsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		cfg := testConfig
		cfg.Resume = 30 * time.Second
		c, s, b := connectLink(t, n, cfg, cfg)
		closed, err := c.link.Open(t.Context())
		require.NoError(t, err)
		server := b.accept()
		s.link.ep.(*sim.Endpoint).HoldReceives(true)
		require.NoError(t, closed.Close(0))
		time.Sleep(cfg.Resume)
		s.link.ep.(*sim.Endpoint).HoldReceives(false)
		time.Sleep(2 * patience)
		requireEcho(t, c, s)
		for _, s := range []*Stream{c, s, server} {
			require.NoError(t, s.Close(time.Second))
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
	})
}
