package link

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// A listener that closes says so while its streams live on, so that the peer knows it though the
// listener's process is stopped behind that. The streams, and what the peer sends, go on.
func TestGoAwayIsSaidWhileStreamsLiveOn(t *testing.T) {
	onLink(t, far, stopping, stopping, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		servers[0].link.retire()
		time.Sleep(time.Second)
		peer := endpointOf(servers[0].link)
		peer.HoldReceives(true)
		began := time.Now()
		_, err := clients[0].link.Open(t.Context())
		require.ErrorIs(t, err, machine.ErrGoingAway)
		require.Zero(t, time.Since(began), "the dial has waited for the peer")

		peer.HoldReceives(false)
		require.NoError(t, clients[1].Close(time.Minute))
		require.NoError(t, exchange(clients[0], servers[0], 1<<20, 1))
		require.False(t, isGone(clients[0].link))
	})
}

// The last records of the listener's side come behind its GOAWAY: the link does not end before the
// peer's device has them. The dialer reads the end of its stream, and closes without an error.
func TestALinkThatHasSaidGoAwayEndsBehindItsLastRecord(t *testing.T) {
	for seed := range uint64(20) {
		network := far
		network.Seed = seed
		onLink(t, network, testConfig, testConfig, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
			down := make(chan error, 2)
			for _, s := range []*Stream{clients[0], servers[0]} {
				s.link.OnDown(func(cause error) { down <- cause })
			}
			servers[0].link.retire()
			require.NoError(t, servers[1].Close(time.Minute))
			require.NoError(t, clients[1].Close(time.Minute))
			require.NoError(t, writeAll(servers[0], []byte("last")))
			require.NoError(t, servers[0].CloseWrite())
			got, err := readAll(clients[0])
			require.NoError(t, err)
			require.Equal(t, "last", string(got))
			require.NoError(t, clients[0].Close(time.Minute))
			require.NoError(t, servers[0].Close(time.Minute))
			began := time.Now()
			require.NoError(t, <-down)
			require.NoError(t, <-down)
			require.Less(t, time.Since(began), time.Second)
		})
	}
}

// One side's last record is lost with the queue pair, when the listener's side has said GOAWAY long
// before: the other still waits for that record, so the side looks for another queue pair.
func TestALinkDoesNotTakeAnEarlyGoAwayForTheEnd(t *testing.T) {
	for name, dialerLast := range map[string]bool{"the dialer's": true, "the listener's": false} {
		t.Run(name, func(t *testing.T) {
			resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
				down := make(chan error, 2)
				for _, s := range []*Stream{c, s} {
					s.link.OnDown(func(cause error) { down <- cause })
				}
				s.link.retire()
				first, last := s, c
				if dialerLast {
					first, last = c, s
				}
				require.NoError(t, first.CloseWrite())
				time.Sleep(time.Second)
				from, lost := endpointOf(first.link), false
				n.SetFaults(sim.Faults{Send: func(e *sim.Endpoint, wr *fabric.WorkRequest) fabric.Status {
					if e == from && wr.Op == fabric.Send && len(wr.Data) > wire.HeaderSize {
						require.EqualValues(t, credit.FinAckRecord, wr.Data[wire.HeaderSize])
						lost = true
						return fabric.RetryExceeded
					}
					return fabric.OK
				}})
				require.NoError(t, last.Close(time.Minute))
				_, err := readAll(first)
				require.NoError(t, err)
				require.NoError(t, first.Close(time.Minute))
				require.NoError(t, <-down)
				require.NoError(t, <-down)
				require.True(t, lost)
			})
		})
	}
}

// An OPEN that has crossed with GOAWAY is dialed elsewhere at once: no ACCEPT comes behind GOAWAY.
func TestADialThatCrossesWithGoAwayDoesNotWaitForTheAnswer(t *testing.T) {
	besideAPeer(t, false, testConfig, func(t *testing.T, p *rawPeer) {
		dialed := dialing(t.Context(), p.s.link)
		p.last(credit.OpenRecord)
		p.control(goodbye)
		synctest.Wait()
		require.Len(t, dialed, 1, "the dial waits for an answer")
		require.ErrorIs(t, (<-dialed).err, machine.ErrGoingAway)
		p.control(p.refuse(1))
		require.NoError(t, writeAll(p.s, []byte("x")), "the other stream goes on")
	})
}

// GOAWAY of the listener's side goes behind the answers to all OPENs that have come, also if they
// have to wait.
func TestGoAwayGoesBehindAccept(t *testing.T) {
	besideAPeer(t, true, testConfig, func(t *testing.T, p *rawPeer) {
		l := p.s.link
		var opens []wire.Record
		for i := range uint32(credit.RecordWindow + 15) {
			opens = append(opens, p.open(1+i))
		}
		p.deaf = true
		for _, open := range opens[:credit.RecordWindow] {
			p.control(open)
			synctest.Wait()
			p.poll()
		}
		p.control(opens[credit.RecordWindow : credit.RecordWindow+9]...)
		p.control(opens[credit.RecordWindow+9:]...)
		synctest.Wait()
		l.retire()
		p.acknowledge(0, credit.RecordWindow)
		p.last(credit.GoAwayRecord)
		require.Len(t, p.got, len(opens)+1)
		for _, r := range p.got[:len(opens)] {
			require.Equal(t, credit.AcceptRecord, r.Type)
		}
		p.deaf = false
		p.control(p.open(100))
		require.EqualValues(t, wire.RefusedClosed, p.last(credit.RefuseRecord).Reason)
	})
}

// servers returns the endpoints of the listener's side.
func (p *dialingProcess) servers(n *sim.Network) (all []*sim.Endpoint) {
	for _, ep := range n.Endpoints() {
		if ep.LocalAddr() == p.listener.Addr() {
			all = append(all, ep)
		}
	}
	return all
}

// A link on which the peer does not answer is passed over: by the dial that finds out, which has
// another made, and by all that come until the peer answers. What is answered late is reset.
func TestALinkThatDoesNotAnswerIsPassedOver(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		p.answer = 250 * time.Millisecond
		first := p.dial(t)
		stopped := p.servers(n)[0]
		stopped.HoldReceives(true)
		began := time.Now()
		second := p.dial(t)
		require.NotSame(t, first.link, second.link)
		require.Equal(t, p.answer, time.Since(began).Truncate(10*time.Millisecond))
		began = time.Now()
		streams := p.open(t, 3)
		for _, s := range streams {
			require.Same(t, second.link, s.link, "the link that answers")
		}
		require.Equal(t, 3*time.Second, time.Since(began).Truncate(100*time.Millisecond), "none has waited")
		require.Equal(t, 2, linksUp(n))

		stopped.HoldReceives(false)
		time.Sleep(time.Second)
		last := p.dial(t)
		require.Same(t, first.link, last.link, "the first link answers again")
		require.EqualValues(t, 2, first.link.live.Load(), "the stream that was answered late is over")
		closeAll(t, append(streams, first, second, last))
	})
}

// Of many dials at once on a link that does not answer, each goes on, and one link more is made for all.
func TestManyDialsPassOverALinkThatDoesNotAnswer(t *testing.T) {
	echoed(t, testConfig, testConfig, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		p.answer = 250 * time.Millisecond
		first := p.dial(t)
		p.servers(n)[0].HoldReceives(true)
		dialed := make(chan *Stream)
		began := time.Now()
		for range 1000 { // more than may be unanswered
			go func() { dialed <- p.dial(t) }()
		}
		streams := []*Stream{first}
		for range 1000 {
			s := <-dialed
			require.NotSame(t, first.link, s.link)
			streams = append(streams, s)
		}
		require.Less(t, time.Since(began), 2*time.Second)
		require.Equal(t, 2, linksUp(n))
		p.servers(n)[0].HoldReceives(false)
		closeAll(t, streams)
	})
}

// A peer that is slow, but answers one dial after the other, is not passed over.
func TestALinkThatAnswersSlowlyIsNotPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: 100 * time.Millisecond})
		c, s, b := connectLink(t, n, testConfig, testConfig)
		var pool Pool[string]
		var streams []*Stream
		for i := range 20 {
			made, err := pool.Dial(context.Background(), "address", func(context.Context, bool) (*Stream, error) {
				require.Zero(t, i, "another link")
				return c, nil
			}, More{Answer: 250 * time.Millisecond})
			require.NoError(t, err)
			if streams = append(streams, made); i > 0 {
				streams = append(streams, b.accept())
			}
		}
		endAll(t, n, append(streams, s)...)
	})
}
