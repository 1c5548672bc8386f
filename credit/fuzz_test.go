package credit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLink says anything at all to a Link in the peer's name. It must believe
// what can be and nothing else, and stay within its windows.
func FuzzLink(f *testing.F) {
	f.Add(uint8(1), uint8(1), []byte{0, 1, 2, 3, 4, 5, 6, 7}, uint64(1), uint64(0))
	f.Add(uint8(2), uint8(9), []byte{0, 0, 0, 4, 5, 3, 3, 3, 3, 6}, uint64(math.MaxUint64), uint64(1<<63))
	f.Fuzz(lieToLink)
}

// The same a great many times in each run of the tests, with small windows, and with few kinds of
// acts, so that one is full soon.
func TestLinkKeepsSoundBooksWithALiar(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 3000 {
		acts, kinds, most := randomBytes(r, 80), r.Perm(16)[:1+r.IntN(8)], byte(1+r.IntN(15))
		for i := range acts {
			acts[i] = acts[i]>>4%most<<4 | byte(kinds[r.IntN(len(kinds))])
		}
		lieToLink(t, uint8(r.IntN(3)), uint8(r.IntN(3)), acts, r.Uint64()>>r.IntN(64), r.Uint64()>>r.IntN(64))
	}
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func lieToLink(t *testing.T, receives, window uint8, acts []byte, data, records uint64) {
	l := NewLink(4*max(int(receives), 1), 4*max(int(window), 1))
	for i, act := range acts {
		before := l
		near := Totals{l.acked.Data + uint64(act>>4), l.acked.Records + uint64(i%3)}
		var err error
		switch act % 16 {
		case 0:
			if l.MaySendData() {
				l.SendData()
			}
			continue
		case 1:
			if l.MaySendRecords() {
				require.Equal(t, l.received, l.SendRecords())
			}
			continue
		case 2, 10:
			if l.CreditDue() {
				require.Equal(t, l.received, l.SendCredit())
				require.False(t, l.CreditDue())
			}
			continue
		case 3, 11:
			err = l.ReceiveData()
		case 4, 12:
			err = l.ReceiveRecords(near)
		case 5, 13:
			err = l.ReceiveCredit(near)
		case 6, 14:
			err = l.ReceiveRecords(Totals{data, records})
		case 7, 15:
			err = l.ReceiveCredit(Totals{data, records})
		case 8:
			err = l.Resume(near)
		case 9:
			err = l.Resume(Totals{data, records})
		}
		if err != nil {
			require.Equal(t, before, l, "what is not believed changes nothing")
		}
		require.True(t, l.acked.Data >= before.acked.Data && l.acked.Data <= l.sent.Data)
		require.True(t, l.acked.Records >= before.acked.Records && l.acked.Records <= l.sent.Records)
		require.LessOrEqual(t, l.received.Data-l.told.Data, l.receives)
		require.LessOrEqual(t, l.received.Records-l.told.Records, l.recordWindow)
	}
}

// FuzzStream says anything at all to a Stream in the peer's name, while its owner
// does what it may. It must never be owed a place that the peer has not given,
// and never hold more than its ring.
func FuzzStream(f *testing.F) {
	f.Add(true, []byte{0, 0, 9, 1, 0, 9, 3, 0, 5, 6, 0, 0, 2, 0, 1, 4, 0, 7})
	f.Add(false, []byte{9, 0, 16, 1, 0, 32, 9, 1, 0, 5, 0, 0, 6, 0, 9, 7, 0, 0, 8, 0, 0, 9, 0, 8})
	f.Fuzz(lieToStream)
}

func TestStreamKeepsSoundBooksWithALiar(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 4000 {
		lieToStream(t, r.IntN(2) == 0, randomBytes(r, 3*60))
	}
}

func lieToStream(t *testing.T, dials bool, acts []byte) {
	const size = 16
	s := AcceptStream(size, size)
	if dials {
		s = NewStream(size)
	}
	for ; len(acts) >= 3; acts = acts[3:] {
		before := s
		n := uint64(int16(binary.BigEndian.Uint16(acts[1:]))) // negative ones wrap
		var err error
		switch what := acts[0] % 16; what {
		case 0, 1, 2:
			s.Accept(min(int(n%32), s.Space()))
			if most, newRing := s.Next(); most > 0 || newRing {
				s.Send(most)
			}
		case 3:
			s.Consume(s.received - n%(s.received-s.consumed+1))
		case 4:
			s.CloseWrite()
		case 5:
			s.Reset()
		case 6:
			if s.MayOffer() {
				s.Offer(size << (n % 3) >> 1)
			}
		case 7:
			if due := s.Due(); due != NoRecord {
				s.SendRecord(due)
			}
		case 8:
			err = s.Receive(int(int16(n)), n%5 == 0)
		case 9:
			err = s.Receive(int(n%(2*size)), n%7 == 0)
		case 10:
			r, value := Record(n%10), n>>3
			if r == AcceptRecord || r == RingRecord {
				value %= 1 << 30 // package wire lets no larger ring pass
			}
			err = s.ReceiveRecord(r, value)
		case 11:
			err = s.ReceiveRecord(CreditRecord, s.credited+n%5)
		case 12:
			err = s.ReceiveRecord(FinRecord+Record(n%2), s.received)
		case 13:
			err = s.ReceiveRecord(FinAckRecord, 0)
		case 14:
			err = s.ReceiveRecord(RingRecord, size<<(n%3)>>1)
		case 15:
			err = s.ReceiveRecord(AcceptRecord+Record(n%2), size)
		}
		if err != nil {
			require.Equal(t, before, s, "what is not believed changes nothing")
		}
		require.NoError(t, s.sound())
	}
}

// sound says what is wrong with a ledger.
func (s *Stream) sound() error {
	held := s.received - s.consumed
	before := held - min(held, s.received-min(s.base, s.received)) // bytes in the old ring
	switch {
	case s.stage == Over && s.ring == 0 && held > 0, s.stage == Open && s.ring == 0 && s.endReceived == 0:
		return errors.New("has no ring")
	case s.advertised > s.consumed || s.consumed > s.received:
		return fmt.Errorf("received %d, consumed %d, advertised %d", s.received, s.consumed, s.advertised)
	case held-before > s.ring:
		return fmt.Errorf("%d bytes in a ring of %d", held-before, s.ring)
	case before > s.oldRing:
		return fmt.Errorf("%d bytes in the old ring of %d", before, s.oldRing)
	case s.stage != Open:
		return nil
	case s.credited > s.sent || s.sent > s.accepted || s.Space() < 0 || s.Space() > int(s.peerRing):
		return fmt.Errorf("accepted %d, sent %d, credited %d, room for %d in a ring of %d", s.accepted, s.sent, s.credited, s.Space(), s.peerRing)
	}
	return nil
}
