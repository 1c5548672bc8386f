package link

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// requireReceived has a peer send a little on the first stream, and this side answer.
func (p *rawPeer) requireReceived() {
	p.t.Helper()
	p.data(0, 5)
	n, err := p.s.Read(make([]byte, 10), unlimited())
	require.NoError(p.t, err)
	require.Equal(p.t, 5, n)
	require.NoError(p.t, writeAll(p.s, []byte("still here")))
}

// A dial that is given up keeps its number until the answer, and answers ACCEPT
// with RESET.
func TestADialThatIsGivenUpKeepsItsNumber(t *testing.T) {
	besideAPeer(t, false, testConfig, func(t *testing.T, p *rawPeer) {
		ctx, cancel := context.WithCancel(context.Background())
		dial := dialing(ctx, p.s.link)
		given := p.last(credit.OpenRecord).Stream
		cancel()
		require.ErrorIs(t, (<-dial).err, context.Canceled)

		next := dialing(context.Background(), p.s.link)
		n := p.last(credit.OpenRecord).Stream
		require.NotEqual(t, given, n)
		p.control(p.accept(n))
		o := <-next
		require.NoError(t, o.err)

		p.control(p.accept(given))
		require.Equal(t, given, p.last(credit.ResetRecord).Stream)
		p.control(record(credit.ResetRecord, given), record(credit.FinAckRecord, given))
		require.Equal(t, given, p.last(credit.FinAckRecord).Stream)

		again := dialing(context.Background(), p.s.link)
		require.Equal(t, given, p.last(credit.OpenRecord).Stream, "the number is free")
		p.control(p.refuse(given))
		require.ErrorIs(t, (<-again).err, syscall.ECONNREFUSED)
		_ = o.s.Close(0)
	})
}

// A peer that is stopped, or does not want to, may leave OPEN unanswered.
func TestAnOpenThatIsNotAnsweredHasATimeLimit(t *testing.T) {
	besideAPeer(t, false, testConfig, func(t *testing.T, p *rawPeer) {
		began := time.Now()
		require.ErrorIs(t, (<-dialing(context.Background(), p.s.link)).err, context.DeadlineExceeded)
		require.Equal(t, testConfig.HandshakeTimeout, time.Since(began))
	})
}

// A peer may open streams as fast as its window lets it, and never read what
// they are answered. Nobody else waits for that, and the link's other streams go
// on.
func TestAFloodOfOpensIsAnsweredInItsTurn(t *testing.T) {
	for _, reason := range []wire.RefuseReason{0, wire.RefusedBacklog} {
		besideAPeer(t, true, testConfig, func(t *testing.T, p *rawPeer) {
			p.b.refuse = reason
			p.deaf = true
			for n := range uint32(200) {
				p.control(p.open(n + 1))
				synctest.Wait()
			}
			require.GreaterOrEqual(t, int(p.s.link.live.Load()), 201-credit.RecordWindow, "those that have been refused are gone")
			p.requireReceived()
		})
	}
}

// A stream that has ended ignores offers. A peer that keeps to its windows can go on to make them:
// each costs what a message costs, and no other stream waits for it.
func TestFloodWithinItsWindowsHoldsNothingUp(t *testing.T) {
	besideAPeer(t, false, testConfig, func(t *testing.T, p *rawPeer) {
		p.endWrites(0)
		for range 1000 {
			p.control(slices.Repeat([]wire.Record{p.offer(0, wire.MinRing)}, wire.MaxRecords)...)
			synctest.Wait()
		}
		require.Less(t, p.s.link.Stats().WorkRequests, uint64(1000/credit.RecordCredit+10), "link credit, and no answer to each")
		p.data(0, 5)
		n, err := p.s.Read(make([]byte, 10), unlimited())
		require.NoError(t, err)
		require.Equal(t, 5, n)
	})
}

// A peer opens as many streams as it may and fills their rings, which grow for it. No other link gives
// anything up for that.
func TestAPeerAloneMakesALinkRegisterNoMoreThanItsBound(t *testing.T) {
	cfg := testConfig
	cfg.RemoteMemory = 2 << 20
	besideAPeer(t, true, cfg, func(t *testing.T, p *rawPeer) {
		c, other, _ := connectLink(t, p.n, testConfig, testConfig)
		require.NoError(t, exchange(c, other, 1<<20, 1))
		time.Sleep(2 * unused)
		grown := other.ringSize()
		require.Greater(t, grown, 100<<10)
		refused := 0
		for i := range uint32(200) {
			p.control(p.open(i + 1))
			synctest.Wait()
			p.poll()
			switch last := p.got[len(p.got)-1]; {
			case last.Type == credit.RefuseRecord:
				require.Equal(t, wire.RefusedClosed, last.Reason, "another link has a bound of its own")
				refused++
			default:
				p.data((i+1)|uint32(wire.FullRing), 16<<10)
				synctest.Wait()
				p.poll()
			}
		}
		require.Positive(t, refused)
		l := p.s.link
		rings, all := l.registeredBytes()
		require.LessOrEqual(t, rings, cfg.RemoteMemory)
		require.Greater(t, rings, cfg.RemoteMemory/2)
		require.LessOrEqual(t, all, fixed(cfg)+cfg.RemoteMemory)
		require.LessOrEqual(t, l.ep.(*sim.Endpoint).Registered(), all)
		require.True(t, l.usable())
		time.Sleep(time.Second)
		require.Equal(t, grown, other.ringSize())
		require.NoError(t, c.Close(time.Second))
		require.NoError(t, other.Close(time.Second))
	})
}

// cramped is an endpoint that cannot map the peer's memory.
type cramped struct{ fabric.Endpoint }

func (cramped) Reaches(uint64, uint32, int) bool { return false }

func (cramped) Reach(context.Context, uint64, uint32, int) error {
	return &budget.ShortageError{Of: budget.AddressSpace}
}

// A peer whose ring this side has no addresses for has broken nothing.
func TestARingThatCannotBeMappedIsNoBreach(t *testing.T) {
	besideAPeer(t, true, testConfig, func(t *testing.T, p *rawPeer) {
		l := p.s.link
		l.lock()
		l.ep = cramped{l.ep}
		l.unlock()
		p.control(p.open(1))
		_, err := p.s.Read(make([]byte, 1), unlimited())
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.NotErrorIs(t, err, syscall.EPROTO)
	})
}

// The peer receives all that it is sent, and never sends anything.
func TestPeerThatIsSilentHoldsUpItsOwnConnectionOnly(t *testing.T) {
	besideAPeer(t, false, testConfig, func(t *testing.T, p *rawPeer) {
		soon := unlimited()
		soon.Set(time.Now().Add(time.Second))
		n, err := p.s.Write(make([]byte, 100_000), soon)
		require.Equal(t, wire.MinRing, n)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		start := time.Now()
		require.NoError(t, p.s.Close(time.Minute), "its device has it all")
		require.Zero(t, time.Since(start))
	})
}

// A peer that does not answer GOAWAY is given up after a while, however long the link may be
// idle: a peer that has no stream has nothing to wait for.
func TestGOAWAYIsNotWaitedForLong(t *testing.T) {
	besideAPeer(t, false, testConfig, func(t *testing.T, p *rawPeer) {
		l := p.s.link
		l.cfg.LinkIdle = time.Hour
		require.NoError(t, p.s.Close(time.Second))
		p.control(finAt(0), finAck)
		synctest.Wait()
		l.Leave()
		p.last(credit.GoAwayRecord)
		time.Sleep(closeTimeout - time.Second)
		require.False(t, isGone(l))
		time.Sleep(time.Second + drainTime)
		require.True(t, isGone(l))
	})
}

// A peer that has received the RESETs of streams and does not answer keeps their rings no
// longer than the link, which ends.
func TestAPeerThatDoesNotAnswerResetsEndsItsLink(t *testing.T) {
	for name, deaf := range map[string]bool{"it acknowledges them": false, "it says nothing": true} {
		t.Run(name, func(t *testing.T) {
			besideAPeer(t, true, testConfig, func(t *testing.T, p *rawPeer) {
				p.deaf = deaf
				number := uint32(0)
				open := func() *Stream {
					number++
					p.control(p.open(number))
					s := p.b.accept()
					require.Equal(t, number, p.last(credit.AcceptRecord).Stream)
					return s
				}
				for range 3 {
					require.NoError(t, open().Close(0))
					require.Equal(t, number, p.last(credit.ResetRecord).Stream)
				}
				time.Sleep(closeTimeout * 3 / 2)
				if !deaf {
					defer open().Close(0)
				}
				time.Sleep(closeTimeout)
				require.ErrorContains(t, writeAll(p.s, []byte("x")), "RESET")
			})
		})
	}
}

// FuzzPeerOfManyStreams has a peer that dialed, or that was dialed, do anything with a few streams,
// whose owners read them, write to them and close them. In the end nothing is left.
func FuzzPeerOfManyStreams(f *testing.F) {
	for i := range byte(hostileActs) {
		f.Add([]byte{0, 1, 0, 9, 1, 1, 0, 5, i, 1, 0, 0, 0, 2, 1, 0, i, 2, 0, 7, i, 0, 0, 0})
		f.Add([]byte{i, 0, 2, 3, i, 0, 0, 1, 1, 0, 0, 9, i, 255, 255, 255, 0})
	}
	f.Fuzz(func(t *testing.T, actions []byte) {
		act := func(_ *testing.T, p *rawPeer) {
			meanwhile := func() {
				for len(p.b.came) > 0 {
					go owner(p.b.accept(), p.sent)
				}
			}
			for ; len(actions) >= 4; actions = actions[4:] {
				p.act(p.s.link, actions[0]%64, uint32(actions[1]), binary.BigEndian.Uint16(actions[2:]))
				// The race detector would report a peer that writes where the link is reading, and
				// so spoils its own bytes: here it is a goroutine that writes.
				if raceEnabled || actions[0]&64 != 0 {
					synctest.Wait()
				}
				meanwhile()
			}
			synctest.Wait()
			meanwhile()
			owner(p.s, len(actions))
		}
		if len(actions)%2 == 1 {
			besideAPeer(t, false, small, act)
		} else {
			besideAPeer(t, true, testConfig, act)
		}
	})
}

// owner uses a stream in one of some ways, and closes it.
func owner(s *Stream, way int) {
	limit := deadline.New()
	limit.Set(time.Now().Add(time.Second))
	defer limit.Set(time.Time{})
	switch way % 6 {
	case 0:
		for b, err := make([]byte, 100), error(nil); err == nil; {
			_, err = s.Read(b, limit)
		}
	case 1:
		_, _ = s.Write(make([]byte, 10_000), limit)
	case 2:
		_ = s.CloseRead()
		_ = s.CloseWrite()
	case 3:
		for n := 1; n > 0; {
			held, err := s.Peek(40, limit)
			if n = len(held); err == nil {
				n /= 2
			}
			_, _ = s.Discard(n, limit)
		}
	case 4:
		v := net.Buffers{nil, make([]byte, 10), nil, make([]byte, 100), make([]byte, 10_000)}
		_, _ = s.WriteBuffers(&v, limit)
	}
	_ = s.Close(time.Duration(way%3) * time.Second)
}

// hostileActs is how many kinds of things rawPeer.act does.
const hostileActs = 20

// act does one thing that a peer may do, by the book or not.
func (p *rawPeer) act(l *Link, what byte, a uint32, n uint16) {
	value, stream := uint64(n%64), a%8
	switch what % hostileActs {
	case 0:
		p.control(wire.Record{Type: credit.OpenRecord, Stream: stream, Ring: p.place(), Port: n})
	case 1, 2:
		p.data(stream, int(n%64))
	case 3:
		p.data(stream|1<<31, int(n%64))
	case 4:
		p.control(wire.Record{Type: credit.CreditRecord, Stream: stream, Position: value * 1000})
	case 5:
		p.control(wire.Record{Type: credit.FinRecord, Stream: stream, Position: value})
	case 6:
		p.control(wire.Record{Type: credit.ResetRecord, Stream: stream, Position: value, Late: n > 1<<15})
	case 7:
		p.control(record(credit.FinAckRecord, stream))
	case 8:
		p.control(p.offer(stream, wire.MinRing))
	case 9:
		p.control(wire.Record{Type: credit.AcceptRecord + credit.Record(n%2), Stream: stream, Ring: p.place(), Reason: wire.RefusedTaken})
	case 10:
		p.control(record(credit.GoAwayRecord, 0))
	case 11: // all at once
		p.control(
			wire.Record{Type: credit.OpenRecord, Stream: stream, Ring: p.place(), Port: n},
			record(credit.FinRecord, stream),
			record(credit.FinAckRecord, stream))
	case 12:
		p.deaf = !p.deaf
	case 13:
		time.Sleep(time.Duration(n) * time.Millisecond)
	case 14:
		p.post(p.write(p.peer.Addr+uint64(n), p.peer.RKey, int(a)))
	case 15:
		_ = p.ep.Disconnect()
	case 16:
		p.acknowledge(uint64(a), value)
	case 17: // no message
		p.send(p.out.Bytes()[a : a+uint32(n%64)])
	case 18: // any record
		p.send(encoded(wire.Header{}, wire.Record{Type: credit.Record(a % 12), Stream: uint32(n), Position: value, Reason: wire.RefuseReason(n >> 8)}))
	case 19:
		go func() {
			if s, err := l.Open(context.Background()); err == nil {
				owner(s, int(a))
			}
		}()
	}
}
