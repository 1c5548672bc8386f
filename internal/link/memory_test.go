package link

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
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
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory.rings.size, l.memory.account.Bytes()
}

// ringSize is the size of the ring that the peer writes to.
func (s *Stream) ringSize() int {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.inbox.held.size
}

// connectAgain makes one more link and returns what became of it at both ends.
func connectAgain(t *testing.T, n *sim.Network, active, passive Setup) (c, s *Stream, dialed, accepted error) {
	t.Helper()
	l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
	require.NoError(t, err)
	defer l.Close()
	type end struct {
		s   *Stream
		err error
	}
	ends := make(chan end, 1)
	go func() {
		ep, err := l.Accept()
		if err != nil {
			ends <- end{nil, err}
			return
		}
		_, s, err := Accept(context.Background(), ep, passive)
		ends <- end{s, err}
	}()
	ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	c, dialed = Dial(context.Background(), ep, active)
	if dialed != nil {
		_ = l.Close() // or Accept may wait for a request that never was
	}
	e := <-ends
	return c, e.s, dialed, e.err
}

func TestALinkHasItsMemoryAtOnceOrNotAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		opened := 0
		n.SetFaults(sim.Faults{Open: func(*sim.Endpoint) error { opened++; return nil }})
		enough, short := limitedTo(fixed(testConfig)), limitedTo(fixed(testConfig)-1)
		_, _, err, _ := connectAgain(t, n, short, enough)
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.ErrorContains(t, err, "KiB more would have to be registered, and ringnet has 0 KiB of")
		require.Zero(t, opened, "endpoints opened")

		_, _, err, accepted := connectAgain(t, n, enough, short)
		require.ErrorIs(t, accepted, syscall.ENOMEM)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, "connection refused by the peer: ")
		require.ErrorContains(t, err, "KiB more would have to be registered, and ringnet has 0 KiB of")
		require.False(t, err.(*RefusedError).Busy, "nobody is about to give memory back")
		require.Equal(t, 1, opened, "endpoints opened")

		c, s, err, accepted := connectAgain(t, n, enough, limitedTo(fixed(testConfig)))
		require.NoError(t, errors.Join(err, accepted))
		require.NoError(t, c.Close(0))
		require.NoError(t, s.Close(0))
		time.Sleep(time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
		require.Zero(t, inUse(enough.Budget)+inUse(short.Budget), "memory left in use")
	})
}

// A device that grants shorter queues than were asked for takes less.
func TestWhatIsReservedIsWhatIsRegistered(t *testing.T) {
	for name, link := range map[string]sim.Link{"all": {}, "shorter queues": {SendQueue: 32, RecvQueue: 64}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(link)
				c, s, b := connectLink(t, n, testConfig, testConfig)
				all := []*Stream{c, s}
				for range 20 {
					client, err := c.Link().Open(context.Background())
					require.NoError(t, err)
					all = append(all, client, b.accept())
				}
				for _, l := range []*Link{c.link, s.link} {
					_, reserved := l.registeredBytes()
					receives := l.ep.Footprint(fabric.Options{RecvQueue: l.limits.RecvQueue, RecvSize: wire.MessageSize, Sends: credit.LinkControlReceives}).Receives
					require.Equal(t, l.ep.(*sim.Endpoint).Registered()+receives, reserved)
					require.Equal(t, reserved, l.Info().Memory)
				}
				for _, s := range all {
					require.NoError(t, s.Close(0))
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
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

func TestGrowthStopsWhenMemoryIsShortAndTrafficGoesOn(t *testing.T) {
	for name, test := range map[string]struct{ limit, remote, grows int }{
		"no limit":            {budget.Unlimited, 256 << 20, 1 << 20},
		"of the process":      {fixed(testConfig) + 1<<20, 256 << 20, 512 << 10},
		"no room to grow":     {fixed(testConfig) + 100<<10, 256 << 20, 16 << 10},
		"of the link":         {budget.Unlimited, 1 << 20, 512 << 10},
		"no room in the link": {budget.Unlimited, 128 << 10, 16 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				passive := limitedTo(test.limit)
				passive.RemoteMemory, passive.RecvBuffer = test.remote, min(1<<20, test.remote)
				c, s, _ := connectLink(t, n, testConfig, passive)
				require.NoError(t, exchange(c, s, 6<<20, 1))
				require.LessOrEqual(t, inUse(passive.Budget), test.limit)
				require.LessOrEqual(t, s.ringSize(), test.grows)
				if test.grows == 16<<10 {
					require.Equal(t, test.grows, s.ringSize())
				} else {
					require.Greater(t, s.ringSize(), 16<<10)
				}
				require.NoError(t, c.Close(time.Second))
				require.NoError(t, s.Close(time.Second))
			})
		})
	}
}

// openUntilRefused opens streams until that fails, and says why.
func openUntilRefused(l *Link, b *backlog) (clients, servers []*Stream, err error) {
	for {
		c, err := l.Open(context.Background())
		if err != nil {
			return clients, servers, err
		}
		clients, servers = append(clients, c), append(servers, b.accept())
	}
}

func TestStreamsForWhichThereIsNoMemory(t *testing.T) {
	room := fixed(testConfig) + 600<<10 // for two slabs
	unlimitedly := limitedTo(budget.Unlimited)
	inALink := func(n int) Setup {
		cfg := limitedTo(budget.Unlimited)
		cfg.RemoteMemory = n
		return cfg
	}
	for name, test := range map[string]struct {
		active, passive Setup
		says            string
	}{
		"the dialer's process":   {limitedTo(room), unlimitedly, "256 KiB more would have to be registered, and ringnet has"},
		"the dialer's link":      {inALink(1 << 20), unlimitedly, "256 KiB more would have to be registered for the rings of one link, which has 784 KiB of 1024 KiB"},
		"the listener's process": {unlimitedly, limitedTo(room), "connection refused by the peer: the peer has no memory for another connection"},
		"the listener's link":    {unlimitedly, inALink(1 << 20), "connection refused by the peer: the peer has no memory for another connection"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				c, s, b := connectLink(t, n, test.active, test.passive)
				clients, servers, err := openUntilRefused(c.Link(), b)
				require.ErrorContains(t, err, test.says)
				require.GreaterOrEqual(t, len(clients), 32)
				require.NoError(t, exchange(clients[3], servers[3], 1<<20, 2), "the others go on")

				require.NoError(t, clients[7].Close(time.Second))
				require.NoError(t, servers[7].Close(time.Second))
				time.Sleep(time.Second)
				again, err := c.Link().Open(context.Background())
				require.NoError(t, err, "there is memory again")
				for _, s := range append(append(clients, servers...), again, b.accept(), c, s) {
					_ = s.Close(0)
				}
			})
		})
	}
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
				s.link.mu.Lock()
				require.False(t, s.link.memory.shrinking.pending, "there is nothing left to look for")
				s.link.mu.Unlock()
				require.NoError(t, c.Close(time.Second))
				require.NoError(t, s.Close(time.Second))
				time.Sleep(2 * time.Minute)
				require.Zero(t, n.Open(), "endpoints left open")
			})
		})
	}
}

// A ring that holds what nobody reads stays, however long that is.
func TestARingThatIsNotEmptyDoesNotShrink(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		read := func(n int) {
			for n > 0 {
				m, err := s.Read(make([]byte, n), unlimited())
				require.NoError(t, err)
				n -= m
			}
		}
		require.NoError(t, writeAll(c, make([]byte, firstRing)))
		require.NoError(t, writeAll(c, make([]byte, 100<<10)))
		read(firstRing) // the old ring is empty now, the new one is not
		time.Sleep(3 * s.link.shrinkAfter())
		require.Equal(t, eagerRing, s.ringSize())
		read(100 << 10)
		time.Sleep(3 * s.link.shrinkAfter())
		require.Equal(t, firstRing, s.ringSize())
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
	})
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
				c, s, b := connectLink(t, n, testConfig, cfg)
				all := []*Stream{c, s}
				for range 10 { // a slab has room for 16 such, and for one of them to grow
					client, err := c.Link().Open(context.Background())
					require.NoError(t, err)
					all = append(all, client, b.accept())
				}
				for i := 0; i < len(all); i += 2 {
					require.NoError(t, exchange(all[i], all[i+1], 1<<20, 6))
					require.Equal(t, firstRing, all[i+1].ringSize())
				}
				for _, s := range all {
					_ = s.Close(time.Second)
				}
			})
		})
	}
}

// retried repeats what fails because memory is about to be given back.
func retried[T any](do func() (T, error)) (T, error) {
	for {
		v, err := do()
		var shortage *budget.ShortageError
		var refused *RefusedError
		if errors.As(err, &shortage) && shortage.Releasing || errors.As(err, &refused) && refused.Busy {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		return v, err
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
		time.Sleep(2 * unfilled)

		for range 60 {
			client, err := retried(func() (*Stream, error) { return c.Link().Open(context.Background()) })
			require.NoError(t, err)
			all = append(all, client, b.accept())
		}
		require.NoError(t, exchange(all[0], all[1], 1<<20, 4))
		for range 2 { // of which one alone has room
			type ends struct{ c, s *Stream }
			made, err := retried(func() (ends, error) {
				c, s, dialed, _ := connectAgain(t, n, testConfig, cfg)
				return ends{c, s}, dialed
			})
			if err != nil {
				require.ErrorContains(t, err, "KiB more would have to be registered")
				continue
			}
			all = append(all, made.c, made.s)
		}
		for _, s := range append(all, c, s) {
			_ = s.Close(0)
		}
		time.Sleep(2 * time.Minute)
		require.Zero(t, inUse(cfg.Budget), "memory left in use")
	})
}

// A link that has reached its own limit takes nothing from others.
func TestALinkThatIsFullIsNoOthersConcern(t *testing.T) {
	unlimitedly := limitedTo(budget.Unlimited)
	full := unlimitedly
	full.RemoteMemory = 1 << 20
	for name, cfg := range map[string]struct{ active, passive Setup }{
		"the dialer's":   {full, unlimitedly},
		"the listener's": {unlimitedly, full},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				c, s, _ := connectLink(t, n, unlimitedly, unlimitedly)
				require.NoError(t, exchange(c, s, 1<<20, 1))
				time.Sleep(2 * unfilled)
				before := s.ringSize()
				require.Greater(t, before, 100<<10)

				other, accepted, b := connectLink(t, n, cfg.active, cfg.passive)
				clients, servers, err := openUntilRefused(other.Link(), b)
				require.Error(t, err)
				time.Sleep(time.Second)
				require.Equal(t, before, s.ringSize())
				for _, s := range append(append(clients, servers...), other, accepted, c, s) {
					_ = s.Close(0)
				}
			})
		})
	}
}

// Links that carry nothing leave before their time.
func TestIdleLinksLeaveForOthers(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := limitedTo(fixed(testConfig))
		c, s, _ := connectLink(t, n, cfg, testConfig)
		_, _, err, _ := connectAgain(t, n, cfg, testConfig)
		require.ErrorContains(t, err, "KiB more would have to be registered")
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
		time.Sleep(time.Second)
		require.Equal(t, 2, n.Open(), "the link stays for a while")
		c, err = retried(func() (*Stream, error) {
			var err error
			c, s, err, _ = connectAgain(t, n, cfg, testConfig)
			return c, err
		})
		require.NoError(t, err)
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, s.Close(time.Second))
	})
}

// fakeMemory is memory for an arena alone.
type fakeMemory struct {
	fabric.Memory
	b     []byte
	freed bool
	stays bool
}

func (m *fakeMemory) Bytes() []byte { return m.b }
func (m *fakeMemory) Keep()         {}
func (m *fakeMemory) Free() bool    { m.freed = !m.stays; return m.freed }

// mark changes a mark that is in every part of a piece.
func mark(t *testing.T, p piece, from, to byte) {
	t.Helper()
	for b := p.bytes(); len(b) > 0; b = b[wire.MinRing:] {
		if b[0] != from {
			t.Fatal("a piece is somebody else's, too")
		}
		b[0] = to
	}
}

// newArena is an arena of fake memory, and takes pieces of it, for which it makes slabs.
func newArena(t *testing.T, limit int, stays bool) (a *arena, take func(size int) (piece, error)) {
	a = &arena{
		account:  &budget.Account{Budget: limitedTo(2 * limit).Budget},
		slabSize: slabSize,
		limit:    limit,
	}
	add := func(n int) error {
		err := a.account.Reserve(n)
		if err == nil {
			a.add(&fakeMemory{b: make([]byte, n), stays: stays}, n)
		}
		return err
	}
	require.NoError(t, add(firstRing))
	return a, func(size int) (piece, error) {
		p, lacks, err := a.take(size)
		if lacks != nil {
			if err = add(lacks.bytes); err == nil {
				p, _, err = a.take(size)
			}
		}
		return p, err
	}
}

// What is taken lies nowhere twice, whatever was taken and given before, and
// slabs are freed when nothing is in them, but for the first.
func TestPiecesOfSlabsDoNotOverlap(t *testing.T) {
	for _, stays := range []bool{false, true} {
		a, take := newArena(t, 8<<20, stays)
		most := 0
		r := rand.New(rand.NewPCG(5, 0))
		var held []piece
		for range 20_000 {
			switch n := len(held); {
			case r.IntN(50) == 0:
				a.growOlder()
				a.trim(r.IntN(3))
			case n > 0 && r.IntN(100) < 45+n/4:
				i := r.IntN(n)
				mark(t, held[i], 1, 0)
				a.give(held[i])
				held[i] = held[n-1]
				held = held[:n-1]
			default:
				p, err := take(wire.MinRing << r.IntN(9))
				if err != nil {
					require.ErrorIs(t, err, syscall.ENOMEM)
					continue
				}
				mark(t, p, 0, 1)
				require.False(t, p.slab.memory.(*fakeMemory).freed)
				held = append(held, p)
			}
			require.LessOrEqual(t, a.size, a.limit)
			require.Equal(t, a.size, a.account.Bytes())
			require.True(t, !stays || len(a.slabs) >= most, "a slab is gone that stays")
			most = len(a.slabs)
		}
		for _, p := range held {
			a.give(p)
		}
		require.Zero(t, a.taken)
		for a.trim(0) > 0 {
		}
		if !stays {
			require.Len(t, a.slabs, 1)
			require.Equal(t, firstRing, a.account.Bytes())
			require.False(t, a.slabs[0].memory.(*fakeMemory).freed)
		} else {
			require.Len(t, a.slabs, most)
		}
	}
}

// A device takes a while for each, and others want the lock.
func TestSlabsAreGivenBackAFewAtATime(t *testing.T) {
	a, take := newArena(t, 64<<20, false)
	var held []piece
	for range 3 * trimBatch {
		p, err := take(slabSize)
		require.NoError(t, err)
		held = append(held, p)
	}
	require.Zero(t, a.trim(0))
	for _, p := range held {
		require.True(t, a.give(p))
	}
	require.Zero(t, a.trim(1), "they have just become empty")
	a.growOlder()
	for range 3 {
		require.True(t, a.mayTrim())
		require.Equal(t, trimBatch*slabSize, a.trim(1))
	}
	require.False(t, a.mayTrim())
	require.Zero(t, a.trim(0))
	require.Equal(t, firstRing, a.size)
}
