package link

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// spreading runs a test with a process that may have four links to an echo server.
// In the end nothing may be left.
func spreading(t *testing.T, test func(t *testing.T, n *sim.Network, p *dialingProcess)) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := testConfig
		cfg.Addresses = new(Addresses)
		l := serveEcho(t, n, cfg)
		p := &dialingProcess{n: n, to: l.Addr(), cfg: cfg, links: 4}
		p.cfg.Addresses = new(Addresses)
		test(t, n, p)
		require.NoError(t, l.Close())
	})
}

// linksUp is how many links there are on a network with one listener.
func linksUp(n *sim.Network) int { return (n.Open() - 1) / 2 }

// open dials so many streams, one after the other, and lets what that has brought
// about come to its end each time.
func (p *dialingProcess) open(t *testing.T, many int) []*Stream {
	t.Helper()
	var streams []*Stream
	for range many {
		s, err := p.dial()
		require.NoError(t, err)
		streams = append(streams, s)
		time.Sleep(time.Second)
	}
	return streams
}

func closeAll(t *testing.T, streams []*Stream) {
	t.Helper()
	for _, s := range streams {
		require.NoError(t, s.Close(time.Second))
	}
}

// onLinks is how many of the streams each link has.
func onLinks(streams []*Stream) map[*Link]int {
	on := make(map[*Link]int)
	for _, s := range streams {
		on[s.Link()]++
	}
	return on
}

func TestALinkHasEightStreamsBeforeThereIsAnother(t *testing.T) {
	spreading(t, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		streams := p.open(t, busyLink)
		require.Equal(t, 1, linksUp(n))
		streams = append(streams, p.open(t, 1)...)
		require.Len(t, onLinks(streams), 1, "nobody waits for the second link")
		require.Equal(t, 2, linksUp(n))
		streams = append(streams, p.open(t, 7*busyLink-1)...)
		require.Equal(t, 4, linksUp(n))
		on := onLinks(streams)
		require.Len(t, on, 4)
		for l, streams := range on {
			require.InDelta(t, 2*busyLink, streams, 1)
			require.Equal(t, streams, l.Info().Connections)
		}
		closeAll(t, streams)
	})
}

func TestAStreamBeginsOnTheLeastLoadedLink(t *testing.T) {
	spreading(t, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		streams := p.open(t, 4*busyLink)
		var kept []*Stream
		left := streams[0].Link()
		for _, s := range streams {
			if s.Link() == left {
				require.NoError(t, s.Close(time.Second))
			} else {
				kept = append(kept, s)
			}
		}
		time.Sleep(time.Second)
		for range 4 {
			s := p.open(t, 1)[0]
			require.Same(t, left, s.Link())
			kept = append(kept, s)
		}
		closeAll(t, kept)
	})
}

// One that is bound to fewer links has its streams on the oldest.
func TestADialWithFewerLinksLeavesTheOthersAlone(t *testing.T) {
	spreading(t, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		streams := p.open(t, 4*busyLink)
		p.links = 2
		few := p.open(t, 2*busyLink)
		require.LessOrEqual(t, len(onLinks(few)), 2)
		p.links = 0
		few = append(few, p.open(t, 1)...)
		require.Same(t, streams[0].Link(), few[len(few)-1].Link())
		closeAll(t, append(streams, few...))
	})
}

func TestDeathOfALinkIsNotThatOfTheOthers(t *testing.T) {
	spreading(t, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		streams := p.open(t, 4*busyLink)
		require.Equal(t, 4, linksUp(n))
		p.mu.Lock()
		p.ends[1].(*sim.Endpoint).Kill()
		p.mu.Unlock()
		time.Sleep(time.Second)
		dead := 0
		for _, s := range streams {
			err := comesBack(s, 1)
			switch {
			case err == nil:
				defer s.Close(time.Second)
			default:
				dead++
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NoError(t, s.Close(time.Second))
			}
		}
		require.InDelta(t, busyLink, dead, 1)
		more := p.open(t, dead+1)
		require.Len(t, onLinks(append(more, streams...)), 4, "and none but those that there were")
		time.Sleep(restTime)
		more = append(more, p.open(t, 2)...)
		require.Len(t, onLinks(append(more, streams...)), 5, "another in its place")
		closeAll(t, more)
	})
}

// comesBack has so many bytes come back.
func comesBack(s *Stream, n int) error {
	sent, got := make([]byte, n), make([]byte, n)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	wrote := make(chan error, 1)
	go func() { wrote <- writeAll(s, sent) }()
	_, err := io.ReadFull(reader{s}, got)
	if err := errors.Join(err, <-wrote); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return errors.New("what comes back is something else")
	}
	return nil
}

// However the making of another link goes on or ends, dials go on over the first.
func TestNoDialWaitsForAnotherLinkOrFailsWithIt(t *testing.T) {
	spreading(t, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		var calls atomic.Int32
		end := make(chan error)
		p.more = func() (*Link, error) {
			calls.Add(1)
			return nil, <-end
		}
		dial := func() *Stream {
			s, err := p.dial()
			require.NoError(t, err)
			return s
		}
		var streams []*Stream
		for range 10 * busyLink {
			streams = append(streams, dial())
			synctest.Wait()
		}
		require.EqualValues(t, 1, calls.Load(), "one at a time")
		end <- errors.New("refused")
		for range busyLink {
			streams = append(streams, dial())
			synctest.Wait()
		}
		require.EqualValues(t, 1, calls.Load(), "the place rests")
		time.Sleep(restTime)
		streams = append(streams, dial(), dial())
		synctest.Wait()
		require.EqualValues(t, 2, calls.Load())
		require.Len(t, onLinks(streams), 1)

		// The first ends while another is still being made.
		p.kill()
		time.Sleep(time.Second)
		last := dial()
		require.NoError(t, comesBack(last, 1))
		end <- errors.New("refused")
		closeAll(t, append(streams, last))
		time.Sleep(time.Minute)
		p.pool.mu.Lock()
		defer p.pool.mu.Unlock()
		require.Empty(t, p.pool.places)
	})
}

func TestAnotherLinkOutlivesTheFirst(t *testing.T) {
	spreading(t, func(t *testing.T, n *sim.Network, p *dialingProcess) {
		begin := make(chan struct{})
		p.more = func() (*Link, error) {
			<-begin
			return p.dialEmpty()
		}
		var streams []*Stream
		dial := func() *Stream {
			s, err := p.dial()
			require.NoError(t, err)
			return s
		}
		for range busyLink + 1 {
			streams = append(streams, dial())
		}
		p.kill()
		time.Sleep(time.Second)
		begin <- struct{}{}
		time.Sleep(time.Second)
		last := dial()
		require.False(t, last.Link().Stats().MessagesSent > 0)
		require.NoError(t, comesBack(last, 1))
		require.Equal(t, 1, linksUp(n))
		closeAll(t, append(streams, last))
	})
}

func TestALinkWithoutAStreamEndsInItsTime(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := testConfig
		cfg.KeepAlive = time.Second
		cfg.Addresses = new(Addresses)
		l := serveEcho(t, n, cfg)
		p := &dialingProcess{n: n, to: l.Addr(), cfg: cfg}
		made, err := p.dialEmpty()
		require.NoError(t, err)
		time.Sleep(cfg.LinkIdle - time.Second)
		require.Equal(t, 1, linksUp(n))
		require.Positive(t, made.Stats().Probes)
		require.Zero(t, made.Info().Connections)
		time.Sleep(time.Minute)
		require.Zero(t, linksUp(n))
		require.NoError(t, l.Close())
	})
}

// Another link takes nothing that whatever begins may need, at either end, and
// nobody gives anything up for it.
func TestThereIsNoOtherLinkWhereMemoryIsShort(t *testing.T) {
	for name, limit := range map[string]struct{ dialer, listener float64 }{
		"at the dialer":   {2.05, 100},
		"at the listener": {100, 2.05},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				one := float64(fixed(testConfig))
				passive := limitedTo(int(limit.listener * one))
				passive.Addresses = new(Addresses)
				l := serveEcho(t, n, passive)
				p := &dialingProcess{n: n, to: l.Addr(), cfg: limitedTo(int(limit.dialer * one)), links: 4}
				p.cfg.Addresses = new(Addresses)
				streams := p.open(t, 2*busyLink)
				require.Len(t, onLinks(streams), 1)
				require.Equal(t, 1, linksUp(n))
				closeAll(t, streams)
				time.Sleep(time.Second)

				_, err := p.dialEmpty()
				require.Error(t, err)
				require.Equal(t, 1, linksUp(n), "the idle link stays")
				require.NoError(t, l.Close())
				time.Sleep(time.Minute)
				require.Zero(t, inUse(passive.Budget))
				require.Zero(t, inUse(p.cfg.Budget))
			})
		})
	}
}
