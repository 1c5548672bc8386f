package credit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ringSize = 16

// streamPair is both sides of a stream. What one says the other hears at once.
type streamPair struct {
	t              *testing.T
	dialer, answer Stream
}

// openStream returns an open stream with rings of ringSize.
func openStream(t *testing.T) *streamPair {
	p := &streamPair{t: t, dialer: NewStream(ringSize)}
	require.Equal(t, OpenRecord, p.dialer.Due())
	p.answer = AcceptStream(ringSize, int(p.dialer.SendRecord(OpenRecord)))
	p.says(&p.answer, AcceptRecord)
	return p
}

func (p *streamPair) other(s *Stream) *Stream {
	if s == &p.dialer {
		return &p.answer
	}
	return &p.dialer
}

// says has a side say what is due.
func (p *streamPair) says(s *Stream, r Record) {
	p.t.Helper()
	require.Equal(p.t, r, s.Due())
	require.NoError(p.t, p.other(s).ReceiveRecord(r, s.SendRecord(r)))
}

// writes has a side accept and send n bytes, in as many messages as it takes.
func (p *streamPair) writes(s *Stream, n int) {
	p.t.Helper()
	s.Accept(n)
	for s.Pending() > 0 {
		p.sends(s)
	}
}

func (p *streamPair) sends(s *Stream) {
	p.t.Helper()
	n, newRing := s.Next()
	s.Send(n)
	require.NoError(p.t, p.other(s).Receive(n, newRing))
}

// TestStreamBelievesNothingImpossible has the peer break each rule. The ledger
// is as before.
func TestStreamBelievesNothingImpossible(t *testing.T) {
	record := func(r Record, value uint64) func(s *Stream) error {
		return func(s *Stream) error { return s.ReceiveRecord(r, value) }
	}
	data := func(n int, newRing bool) func(s *Stream) error {
		return func(s *Stream) error { return s.Receive(n, newRing) }
	}
	open := func(prepare func(p *streamPair)) func() Stream {
		return func() Stream {
			p := openStream(t)
			prepare(p)
			return p.answer
		}
	}
	asItIs := open(func(*streamPair) {})
	ended := open(func(p *streamPair) { p.dialer.CloseWrite(); p.says(&p.dialer, FinRecord) })
	reset := open(func(p *streamPair) { p.dialer.Reset(); p.says(&p.dialer, ResetRecord) })
	acked := open(func(p *streamPair) {
		p.answer.CloseWrite()
		p.says(&p.answer, FinRecord)
		p.says(&p.dialer, FinAckRecord)
	})
	endedAndAcked := open(func(p *streamPair) {
		p.answer.CloseWrite()
		p.says(&p.answer, FinRecord)
		p.says(&p.dialer, FinAckRecord)
		p.dialer.CloseWrite()
		p.says(&p.dialer, FinRecord)
	})
	full := open(func(p *streamPair) { p.writes(&p.dialer, ringSize) })
	atTheEdge := open(func(p *streamPair) {
		p.writes(&p.dialer, ringSize-1)
		p.answer.Consume(ringSize - 1)
		p.says(&p.answer, CreditRecord)
	})
	sent := open(func(p *streamPair) { p.writes(&p.answer, 8); p.dialer.Consume(4); p.says(&p.dialer, CreditRecord) })
	offering := open(func(p *streamPair) { p.answer.Offer(4); p.says(&p.answer, RingRecord) })
	untold := open(func(p *streamPair) { p.answer.Offer(4) })
	offered := open(func(p *streamPair) { p.dialer.Offer(4); p.says(&p.dialer, RingRecord) })
	for _, c := range []struct {
		name   string
		stream func() Stream
		does   func(s *Stream) error
		want   string
	}{
		{"ACCEPT unasked", asItIs, record(AcceptRecord, 16), "ACCEPT for a stream that is open"},
		{"REFUSE unasked", func() Stream { return NewStream(16) }, record(RefuseRecord, 0), "REFUSE for a stream that is dialing"},
		{"CREDIT before the answer", func() Stream { return AcceptStream(16, 16) }, record(CreditRecord, 1), "CREDIT for a stream that is answering"},
		{"OPEN", asItIs, record(OpenRecord, 16), "unexpected OPEN"},
		{"none", asItIs, record(NoRecord, 0), "unexpected none"},
		{"data before the answer", func() Stream { return AcceptStream(16, 16) }, data(1, false), "data on a stream that is answering"},
		{"data behind the end", ended, data(1, false), "1 bytes behind the end of the stream"},
		{"data for no ring", asItIs, data(1, true), "data for a new ring when none was offered"},
		{"data for a ring not offered yet", untold, data(1, true), "data for a new ring when none was offered"},
		{"data of no bytes", asItIs, data(0, false), "data message of 0 bytes"},
		{"data of less", asItIs, data(-1, false), "data message of -1 bytes"},
		{"data of less for a new ring", offering, data(-1, true), "data message of -1 bytes"},
		{"data beyond credit", full, data(1, false), "data up to byte 17 when credit ends at 16"},
		{"data beyond the new ring", offering, data(5, true), "data up to byte 5 when credit ends at 4"},
		{"data over the edge", atTheEdge, data(2, false), "2 bytes at 15 in a ring of 16"},
		{"CREDIT again", sent, record(CreditRecord, 4), "CREDIT for 4 bytes after 4, with 8 sent"},
		{"CREDIT for less", sent, record(CreditRecord, 3), "CREDIT for 3 bytes after 4, with 8 sent"},
		{"CREDIT for more than was sent", sent, record(CreditRecord, 9), "CREDIT for 9 bytes after 4, with 8 sent"},
		{"CREDIT behind FINACK", acked, record(CreditRecord, 1), "CREDIT behind FINACK"},
		{"CREDIT behind RESET", reset, record(CreditRecord, 1), "CREDIT behind RESET"},
		{"RING behind FINACK", acked, record(RingRecord, 4), "RING behind FINACK"},
		{"RING behind RESET", reset, record(RingRecord, 4), "RING behind RESET"},
		{"a second RING", offered, record(RingRecord, 4), "a second RING before the first is taken"},
		{"FIN elsewhere", full, record(FinRecord, 15), "the end of the stream after 15 bytes, with 16 received"},
		{"RESET elsewhere", full, record(ResetRecord, 17), "the end of the stream after 17 bytes, with 16 received"},
		{"FIN behind FIN", ended, record(FinRecord, 0), "a second end of the stream"},
		{"FIN behind RESET", reset, record(FinRecord, 0), "a second end of the stream"},
		{"RESET behind RESET", reset, record(ResetRecord, 0), "a second end of the stream"},
		{"RESET behind FINACK", endedAndAcked, record(ResetRecord, 0), "RESET behind FINACK"},
		{"FINACK for nothing", asItIs, record(FinAckRecord, 0), "FINACK for no end"},
		{"FINACK again", acked, record(FinAckRecord, 0), "FINACK for no end"},
	} {
		s := c.stream()
		before := s
		assert.EqualError(t, c.does(&s), c.want, c.name)
		assert.Equal(t, before, s, c.name)
	}
}

func TestRecordsHaveNames(t *testing.T) {
	var names []string
	for r := range GoAwayRecord + 2 {
		names = append(names, r.String())
	}
	require.Equal(t, "none|OPEN|ACCEPT|REFUSE|CREDIT|RING|FIN|RESET|FINACK|GOAWAY|record of type 10", strings.Join(names, "|"))
}
