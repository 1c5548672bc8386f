package credit

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLink says anything at all to a Link in the peer's name. It must believe
// what can be and nothing else, and stay within its windows.
func FuzzLink(f *testing.F) {
	f.Add(uint8(1), uint8(1), []byte{0, 1, 2, 3, 4, 5, 6, 7}, uint64(1), uint64(0))
	f.Add(uint8(2), uint8(9), []byte{0, 0, 0, 4, 5, 3, 3, 3, 3, 6}, uint64(math.MaxUint64), uint64(1<<63))
	f.Fuzz(func(t *testing.T, receives, window uint8, acts []byte, data, records uint64) {
		l := NewLink(4*max(int(receives), 1), 4*max(int(window), 1))
		for i, act := range acts {
			before := l
			near := Totals{l.acked.Data + uint64(act>>4), l.acked.Records + uint64(i%3)}
			var err error
			switch act % 8 {
			case 0:
				if l.MaySendData() {
					l.SendData()
				}
				continue
			case 1:
				if l.MaySendRecords() {
					require.Equal(t, l.reposted, l.SendRecords())
				}
				continue
			case 2:
				if l.CreditDue() {
					require.Equal(t, l.reposted, l.SendCredit())
					require.False(t, l.CreditDue())
				}
				continue
			case 3:
				err = l.ReceiveData()
			case 4:
				err = l.ReceiveRecords(near)
			case 5:
				err = l.ReceiveCredit(near)
			case 6:
				err = l.ReceiveRecords(Totals{data, records})
			case 7:
				err = l.ReceiveCredit(Totals{data, records})
			}
			if err != nil {
				require.Equal(t, before, l, "what is not believed changes nothing")
			}
			require.True(t, l.acked.Data >= before.acked.Data && l.acked.Data <= l.sent.Data)
			require.True(t, l.acked.Records >= before.acked.Records && l.acked.Records <= l.sent.Records)
			require.LessOrEqual(t, l.reposted.Data-l.told.Data, l.receives)
			require.LessOrEqual(t, l.reposted.Records-l.told.Records, l.recordWindow)
		}
	})
}

// FuzzStream says anything at all to a Stream in the peer's name, while its owner
// does what it may. It must never be owed a place that the peer has not given,
// and never hold more than its ring.
func FuzzStream(f *testing.F) {
	f.Add(true, []byte{0, 0, 9, 1, 0, 9, 3, 0, 5, 6, 0, 0, 2, 0, 1, 4, 0, 7})
	f.Add(false, []byte{9, 0, 16, 1, 0, 32, 9, 1, 0, 5, 0, 0, 6, 0, 9, 7, 0, 0, 8, 0, 0, 9, 0, 8})
	f.Fuzz(func(t *testing.T, dials bool, acts []byte) {
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
				err = s.ReceiveRecord(Record(n%10), n>>3)
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
			require.True(t, s.consumed <= s.received && s.advertised <= s.consumed)
			require.True(t, s.credited <= s.sent && s.sent <= s.accepted)
			require.GreaterOrEqual(t, s.Space(), 0)
			require.LessOrEqual(t, s.received-max(s.consumed, s.base), uint64(2*size), "no ring is larger")
		}
	})
}
