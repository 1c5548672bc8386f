package link

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// limitedTo is a configuration with a budget of its own.
func limitedTo(n int) Setup {
	cfg := testConfig
	cfg.Budget = budget.New(func() budget.Limits { return budget.Limits{Registered: n, Locked: budget.Unlimited} })
	return cfg
}

// fixed is how many bytes an end of a link takes on a simulated network.
func fixed(cfg Setup) int {
	return cfg.fixedMemory(fabric.Footprint{Receives: (cfg.RecvQueue + credit.LinkControlReceives) * wire.MessageSize})
}

// registeredBytes is how many bytes are registered for the rings of a link, and in all.
func (l *Link) registeredBytes() (rings, all int) {
	l.lock()
	defer l.unlock()
	return l.m.Rings().Size(), l.memory.account.Bytes()
}

// ringSize is the size of the ring that the peer writes to.
func (s *Stream) ringSize() int {
	s.link.lock()
	defer s.link.unlock()
	return int(field(s.m, "inbox.held.size").Int())
}

// exchange writes n random bytes one way, in pieces of random sizes, and has them
// compared; some are read where they lie.
func exchange(from, to *Stream, n int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	want := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(want)
	written := make(chan error, 1)
	go func() {
		for p := want; len(p) > 0; {
			m := min(1+r.IntN(300<<10), len(p))
			if err := writeAll(from, p[:m]); err != nil {
				written <- err
				return
			}
			p = p[m:]
		}
		written <- nil
	}()
	got := make([]byte, n)
	reads := rand.New(rand.NewPCG(seed, 1))
	for at := 0; at < n; {
		m, err := readOneWayOrAnother(to, got[at:], reads)
		if err != nil {
			return err
		}
		at += m
	}
	if !bytes.Equal(got, want) {
		return errors.New("the bytes that arrived are others")
	}
	return <-written
}

func readOneWayOrAnother(s *Stream, p []byte, r *rand.Rand) (int, error) {
	if r.IntN(2) == 0 {
		return s.Read(p, unlimited())
	}
	held, err := s.Peek(min(1+r.IntN(1<<r.IntN(18)), len(p)), unlimited())
	if err != nil && err != bufio.ErrBufferFull {
		return 0, err
	}
	return s.Discard(copy(p, held), unlimited())
}

// Rings to which nothing has come for long are as small as at first, and the slabs
// that they were in are gone, where the fabric can give memory back.
func TestIdleRingsShrink(t *testing.T) {
	for name, keep := range map[string]bool{"memory is given back": false, "memory stays": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				link := far
				link.KeepMemory = keep
				n := sim.New(link)
				c, s, _ := connectLink(t, n, testConfig, testConfig)
				first, _ := s.Link().registeredBytes()
				for round := range uint64(3) {
					require.NoError(t, exchange(c, s, 4<<20, round))
					require.Greater(t, s.ringSize(), 100<<10)
					time.Sleep(s.link.shrinkAfter() / 2)
					require.Greater(t, s.ringSize(), 100<<10, "it is not idle for long")
					time.Sleep(5 * s.link.shrinkAfter())
					require.Equal(t, 16<<10, s.ringSize())
					rings, all := s.Link().registeredBytes()
					require.Equal(t, all, s.Link().Info().Memory)
					if keep {
						require.Less(t, rings, 4<<20, "what there is is used again")
					} else {
						require.Equal(t, first, rings)
					}
				}
				s.link.lock()
				require.True(t, field(s.link.m, "alarms.at").Index(1).IsZero(), "there is nothing left to look for")
				s.link.unlock()
				endAll(t, n, c, s)
			})
		})
	}
}

// Where memory is short, what is registered and free is for streams that begin.
func TestRingsDoNotGrowIntoWhatIsLeftForOthers(t *testing.T) {
	process := limitedTo(fixed(testConfig) + slabSize + firstRing)
	link := limitedTo(budget.Unlimited)
	link.RemoteMemory = firstRing + slabSize + firstRing
	for name, cfg := range map[string]Setup{"of the process": process, "of the link": link} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				cfg.RecvBuffer = slabSize / 4
				clients, servers := streamsOfBoth(t, n, testConfig, cfg, 11) // a slab has room for 16 such, and for one of them to grow
				for i := range clients {
					require.NoError(t, exchange(clients[i], servers[i], 1<<20, 6))
					require.Equal(t, firstRing, servers[i].ringSize())
				}
				endAll(t, n, append(clients, servers...)...)
			})
		})
	}
}

// Rings that were large once, and are idle, make room for what begins: for streams
// of their own link and of others, at either end.
func TestIdleRingsShrinkForOthers(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := limitedTo(2*fixed(testConfig) + 2<<20)
		c, s, b := connectLink(t, n, testConfig, cfg)
		var all []*Stream
		for range 7 {
			client, err := c.Link().Open(context.Background())
			require.NoError(t, err)
			server := b.accept()
			require.NoError(t, exchange(client, server, 1<<20, 3))
			all = append(all, client, server)
		}
		full := inUse(cfg.Budget)
		require.Greater(t, full, fixed(testConfig)+1<<20, "the rings have grown")
		time.Sleep(2 * unused)

		for range 60 {
			client, err := c.link.Open(context.Background())
			for releasing(err) {
				time.Sleep(100 * time.Millisecond)
				client, err = c.link.Open(context.Background())
			}
			require.NoError(t, err)
			all = append(all, client, b.accept())
		}
		require.NoError(t, exchange(all[0], all[1], 1<<20, 4))
		endAll(t, n, append(all, c, s)...)
		require.Zero(t, inUse(cfg.Budget), "memory left in use")
	})
}

// All of a link's memory is in rings, two of which are large and idle. One after the other they shrink for
// what begins: for each there is a small ring to shrink to, the second one's from what the first gave back.
func TestIdleRingsShrinkUntilAllMemoryIsOfSmallOnes(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := testConfig
		cfg.RecvBuffer, cfg.RemoteMemory = slabSize, firstRing+3*slabSize
		c, s, b := connectLink(t, n, testConfig, cfg)
		all := []*Stream{c, s}
		open := func() *Stream {
			client, err := c.link.Open(context.Background())
			for range 10 {
				if releasing(err) {
					time.Sleep(100 * time.Millisecond)
					client, err = c.link.Open(context.Background())
				}
			}
			require.NoError(t, err, "%d streams", len(all)/2)
			all = append(all, client, b.accept())
			return client
		}
		for range 2 {
			client := open()
			require.NoError(t, exchange(client, all[len(all)-1], 1<<20, 3))
			require.Equal(t, slabSize, all[len(all)-1].ringSize())
		}
		time.Sleep(2 * unused)
		for len(all)/2 < cfg.RemoteMemory/firstRing {
			open()
		}
		endAll(t, n, all...)
	})
}

// releasing reports whether a dial has failed for memory that is about to be given back, of the process or
// of the link, in whose place a pool would take another.
func releasing(err error) bool {
	var refused *fabric.RefusedError
	return errors.Is(err, machine.ErrGoingAway) || errors.As(err, &refused) && refused.Busy
}

// The peer has gone on to another ring: what is in the one before is all that will be
// there, and is not touched before it is taken.
func TestPeekEndsWhereAnotherRingBegins(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, writeAll(c, make([]byte, firstRing))) // so that the ring grows
		discard := func(n int) {
			_, err := s.Discard(n, unlimited())
			require.NoError(t, err)
		}
		discard(firstRing / 2)
		time.Sleep(time.Second)
		require.Greater(t, s.ringSize(), firstRing)
		held, err := s.Peek(firstRing/2+1, unlimited())
		require.Equal(t, bufio.ErrBufferFull, err)
		require.Len(t, held, firstRing/2)

		behind := bytes.Repeat([]byte{2}, firstRing)
		require.NoError(t, writeAll(c, behind))
		time.Sleep(time.Second)
		require.Equal(t, firstRing/2, s.Buffered())
		require.Equal(t, make([]byte, firstRing/2), held)
		discard(firstRing / 2)
		held, err = s.Peek(len(behind), unlimited())
		require.NoError(t, err)
		require.Equal(t, behind, held)
		discard(len(behind))
		endAll(t, n, c, s)
	})
}

// memoryAmiss says what of a link's memory is as it may not be at any time. Called with mu held.
func (l *Link) memoryAmiss() string {
	if l.m.Stage() != machine.Closed && l.memory.account.Bytes() < l.m.Rings().Size() {
		return "memory that is not accounted for"
	}
	return ""
}

// ringsAmiss says by how much what is taken for rings is not what streams have, those of the link's
// table and others that are over, but not read. Called with mu held, while no stream begins.
func (l *Link) ringsAmiss(others []*Stream) string {
	have := l.m.Rings().SpareNow()
	streams := make(map[*machine.Stream]bool)
	for _, s := range l.m.Streams() {
		streams[s] = true
	}
	for _, s := range others {
		streams[s.m] = true
	}
	for s := range streams {
		have += s.RingMemory()
	}
	if taken := l.m.Rings().Taken(); taken != have {
		return fmt.Sprintf("%d bytes are taken for rings, and streams have %d", taken, have)
	}
	return ""
}

// A ring that CREDIT has made larger was never full. It is in use all the same, as long as anything comes, and
// is given up when memory is short only behind that.
func TestARingInAConversationStaysWhenMemoryIsShort(t *testing.T) {
	onLink(t, sim.Link{}, testConfig, testConfig, 1, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		client, server := clients[0], servers[0]
		talk := func() {
			for _, way := range [][2]*Stream{{client, server}, {server, client}} {
				require.NoError(t, writeAll(way[0], make([]byte, firstRing/4)))
				_, err := way[1].Discard(firstRing/4, unlimited())
				require.NoError(t, err)
			}
			synctest.Wait() // for memory
		}
		for range creditsToGrow + 2 {
			talk()
		}
		require.Equal(t, eagerRing, server.ringSize())
		for range 10 {
			time.Sleep(unused / 2)
			talk()
			server.link.freeUnneeded()
			client.link.freeUnneeded()
			synctest.Wait()
			talk()
			require.Equal(t, eagerRing, server.ringSize())
			require.Equal(t, eagerRing, client.ringSize())
		}
		time.Sleep(2 * unused)
		require.Positive(t, server.link.freeUnneeded())
		synctest.Wait()
		require.Equal(t, firstRing, server.ringSize())
	})
}
