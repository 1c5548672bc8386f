package credit

import (
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

// ends has the sides end the stream, each with a FIN.
func (p *streamPair) ends() {
	p.t.Helper()
	for _, s := range []*Stream{&p.dialer, &p.answer} {
		s.CloseWrite()
		p.says(s, FinRecord)
		p.says(p.other(s), FinAckRecord)
	}
}

// TestStreamLifeIsThatOfTheTable walks the table of the stages: every way from
// one to another, and that there is no other.
func TestStreamLifeIsThatOfTheTable(t *testing.T) {
	makes := map[Stage]func() Stream{
		Dialing:   func() Stream { return NewStream(ringSize) },
		Opening:   func() Stream { s := NewStream(ringSize); s.SendRecord(OpenRecord); return s },
		Abandoned: func() Stream { s := NewStream(ringSize); s.SendRecord(OpenRecord); s.Reset(); return s },
		Answering: func() Stream { return AcceptStream(ringSize, ringSize) },
		Refusing:  RefuseStream,
		Open:      func() Stream { return openStream(t).answer },
		Over:      func() Stream { p := openStream(t); p.ends(); return p.answer },
	}
	does := map[string]func(s *Stream){
		"says what is due": func(s *Stream) {
			if r := s.Due(); r != NoRecord {
				s.SendRecord(r)
			}
		},
		"hears ACCEPT": func(s *Stream) { _ = s.ReceiveRecord(AcceptRecord, ringSize) },
		"hears REFUSE": func(s *Stream) { _ = s.ReceiveRecord(RefuseRecord, 0) },
		"resets":       (*Stream).Reset,
		"closes":       (*Stream).CloseWrite,
		"hears FIN":    func(s *Stream) { _ = s.ReceiveRecord(FinRecord, 0) },
		"hears RESET":  func(s *Stream) { _ = s.ReceiveRecord(ResetRecord, 0) },
		"hears FINACK": func(s *Stream) { _ = s.ReceiveRecord(FinAckRecord, 0) },
		"hears OPEN":   func(s *Stream) { _ = s.ReceiveRecord(OpenRecord, ringSize) },
	}
	ways := map[Stage]map[string]Stage{
		Dialing:   {"says what is due": Opening, "resets": Over},
		Opening:   {"hears ACCEPT": Open, "hears REFUSE": Over, "resets": Abandoned},
		Abandoned: {"hears ACCEPT": Open, "hears REFUSE": Over},
		Answering: {"says what is due": Open, "resets": Refusing},
		Refusing:  {"says what is due": Over},
	}
	for from, makeStream := range makes {
		for what, do := range does {
			s := makeStream()
			require.Equal(t, from, s.Stage())
			do(&s)
			want, ok := ways[from][what]
			if !ok {
				want = from
			}
			assert.Equal(t, want, s.Stage(), "%v %s", from, what)
		}
	}
	assert.Equal(t, []string{"dialing", "opening", "abandoned", "answering", "refusing", "open", "over"},
		[]string{Dialing.String(), Opening.String(), Abandoned.String(), Answering.String(), Refusing.String(), Open.String(), Over.String()})
}

// TestStreamIsOverWhenNeitherSideHasMoreToSay: after the end and the FINACK of
// both, in whichever order they come, and not before.
func TestStreamIsOverWhenNeitherSideHasMoreToSay(t *testing.T) {
	type step = func(s *Stream)
	say := func(r Record) step { return func(s *Stream) { s.SendRecord(r) } }
	hear := func(r Record) step { return func(s *Stream) { require.NoError(t, s.ReceiveRecord(r, 0)) } }
	for name, steps := range map[string][]step{
		"first to end":         {(*Stream).CloseWrite, say(FinRecord), hear(FinAckRecord), hear(FinRecord), say(FinAckRecord)},
		"last to end":          {hear(FinRecord), say(FinAckRecord), (*Stream).CloseWrite, say(FinRecord), hear(FinAckRecord)},
		"at once":              {(*Stream).CloseWrite, say(FinRecord), hear(FinRecord), hear(FinAckRecord), say(FinAckRecord)},
		"at once, acknowledge": {(*Stream).CloseWrite, say(FinRecord), hear(FinRecord), say(FinAckRecord), hear(FinAckRecord)},
		"reset":                {(*Stream).Reset, say(ResetRecord), hear(FinAckRecord), hear(ResetRecord), say(FinAckRecord)},
		"being reset":          {hear(ResetRecord), say(ResetRecord), say(FinAckRecord), hear(FinAckRecord)},
		"reset behind FIN": {(*Stream).CloseWrite, say(FinRecord), (*Stream).Reset, say(ResetRecord), hear(FinAckRecord),
			hear(ResetRecord), say(FinAckRecord)},
		"being reset behind FIN": {hear(FinRecord), say(FinAckRecord), hear(ResetRecord), say(ResetRecord), hear(FinAckRecord)},
	} {
		s := openStream(t).answer
		for i, do := range steps {
			require.Equal(t, Open, s.Stage(), "%s, step %d", name, i)
			do(&s)
		}
		assert.Equal(t, Over, s.Stage(), name)
		assert.Equal(t, NoRecord, s.Due(), name)
		assert.NotZero(t, s.EndSent(), name)
		assert.NotZero(t, s.EndReceived(), name)
		assert.True(t, s.Acked(), name)
		before := s
		s.Reset()
		assert.Equal(t, before, s, "there is nothing to reset")
	}
}

func TestStreamThatIsRefusedOrGivenUpFreesItsRing(t *testing.T) {
	free := func(s *Stream) {
		ring, old, offered, _ := s.Rings()
		assert.Zero(t, ring+old+offered)
	}
	t.Run("refused", func(t *testing.T) {
		s := NewStream(ringSize)
		s.SendRecord(OpenRecord)
		require.NoError(t, s.ReceiveRecord(RefuseRecord, 0))
		free(&s)
	})
	t.Run("given up before OPEN", func(t *testing.T) {
		s := NewStream(ringSize)
		s.Reset()
		assert.Equal(t, NoRecord, s.Due())
		free(&s)
	})
	t.Run("given up before ACCEPT is sent", func(t *testing.T) {
		s := AcceptStream(ringSize, ringSize)
		s.Reset()
		free(&s)
		assert.Equal(t, RefuseRecord, s.Due())
		assert.Zero(t, s.SendRecord(RefuseRecord))
		assert.Equal(t, Over, s.Stage())
	})
	t.Run("given up behind OPEN", func(t *testing.T) {
		s := NewStream(ringSize)
		s.SendRecord(OpenRecord)
		s.CloseWrite()
		s.Reset()
		assert.Equal(t, NoRecord, s.Due())
		ring, _, _, _ := s.Rings()
		assert.Equal(t, ringSize, ring, "the peer may write to it")
		require.NoError(t, s.ReceiveRecord(AcceptRecord, ringSize))
		assert.Zero(t, s.Space())
		assert.Equal(t, ResetRecord, s.Due())
	})
}

func TestStreamAcceptsWhatThePeerHasRoomFor(t *testing.T) {
	s := NewStream(ringSize)
	require.Zero(t, s.Space(), "nobody has said yet where to write")
	p := openStream(t)
	a, b := &p.dialer, &p.answer

	p.writes(a, ringSize-2)
	assert.Equal(t, 2, a.Space())
	assert.PanicsWithValue(t, "credit: accepting 3 bytes with space for 2", func() { a.Accept(3) })
	assert.Panics(t, func() { a.Accept(-1) })

	b.Consume(ringSize/4 - 1)
	assert.Equal(t, NoRecord, b.Due(), "a quarter has not come together")
	b.Consume(ringSize / 4)
	p.says(b, CreditRecord)
	assert.Equal(t, 2+ringSize/4, a.Space())

	// Two bytes to the end of the ring, and two from its start.
	a.Accept(4)
	n, newRing := a.Next()
	assert.Equal(t, 2, n)
	assert.False(t, newRing)
	assert.PanicsWithValue(t, "credit: sending 3 bytes of 2", func() { a.Send(3) })
	assert.Panics(t, func() { a.Send(0) })
	p.sends(a)
	p.sends(a)
	assert.EqualValues(t, ringSize+2, a.Accepted())
	assert.EqualValues(t, ringSize+2, a.Sent())
	assert.EqualValues(t, ringSize+2, b.Received())
	assert.EqualValues(t, ringSize/4, b.Consumed())
	assert.PanicsWithValue(t, "credit: consumed up to 3 after 4, with 18 received", func() { b.Consume(3) })
	assert.Panics(t, func() { b.Consume(ringSize + 3) })

	// Several CREDITs may be under way.
	b.Consume(8)
	first := b.SendRecord(CreditRecord)
	b.Consume(12)
	second := b.SendRecord(CreditRecord)
	require.NoError(t, a.ReceiveRecord(CreditRecord, first))
	require.NoError(t, a.ReceiveRecord(CreditRecord, second))
	assert.Equal(t, ringSize-(ringSize+2-12), a.Space())
}

// TestStreamSaysWhatIsDueOnceBeforeCredit, which a fast reader makes due again
// with every SEND.
// Full is what the peer cannot send to, and will not be given credit for.
func TestStreamIsFullWhenNoMoreCanCome(t *testing.T) {
	p := openStream(t)
	s := &p.dialer
	require.False(t, s.Full())
	p.writes(&p.answer, ringSize-1)
	require.False(t, s.Full())
	p.writes(&p.answer, 1)
	require.True(t, s.Full())
	s.Consume(ringSize/4 - 1)
	require.True(t, s.Full(), "no CREDIT is due")
	s.Consume(ringSize / 4)
	require.False(t, s.Full(), "CREDIT is due")
	p.says(s, CreditRecord)
	require.False(t, s.Full(), "the peer has room")
	p.writes(&p.answer, ringSize/4)
	require.True(t, s.Full())
	s.Offer(2 * ringSize)
	p.says(s, RingRecord)
	require.True(t, s.Full(), "the room is in another ring")
	p.sends(&p.answer)
	require.False(t, s.Full())
}

func TestStreamSaysWhatIsDueOnceBeforeCredit(t *testing.T) {
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	b.Offer(2 * ringSize)
	b.CloseWrite()
	for _, want := range []Record{RingRecord, FinRecord, CreditRecord} {
		p.writes(a, ringSize/4)
		b.Consume(b.Received())
		assert.Equal(t, want, b.Due())
		b.SendRecord(want)
	}
}

func TestStreamOfATinyRingIsGivenCreditForEveryByte(t *testing.T) {
	s := AcceptStream(2, 2)
	s.SendRecord(AcceptRecord)
	require.NoError(t, s.Receive(1, false))
	assert.Equal(t, NoRecord, s.Due())
	s.Consume(1)
	assert.Equal(t, CreditRecord, s.Due())
}

func TestStreamEndsBehindItsLastByte(t *testing.T) {
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	a.Accept(3)
	a.CloseWrite()
	a.CloseWrite()
	assert.Zero(t, a.Space())
	assert.Equal(t, NoRecord, a.Due())
	p.sends(a)
	p.says(a, FinRecord)
	n, newRing := a.Next()
	assert.Zero(t, n)
	assert.False(t, newRing)
	p.says(b, FinAckRecord)

	// The other direction goes on, and credit for it comes behind FIN.
	p.writes(b, ringSize)
	a.Consume(ringSize)
	p.says(a, CreditRecord)
	assert.Equal(t, ringSize, b.Space())

	// Bytes are read when the stream is over, and then the ring is free.
	b.CloseWrite()
	p.says(b, FinRecord)
	p.says(a, FinAckRecord)
	require.Equal(t, Over, b.Stage())
	ring, _, _, _ := b.Rings()
	assert.Equal(t, ringSize, ring)
	b.Consume(3)
	ring, _, _, _ = b.Rings()
	assert.Zero(t, ring)
}

func TestStreamResetDropsWhatWasNotSent(t *testing.T) {
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	a.Accept(5)
	a.Send(2)
	require.NoError(t, b.Receive(2, false))
	a.Reset()
	assert.Equal(t, NoRecord, a.Due(), "what was accepted comes first")
	a.Drop()
	assert.Zero(t, a.Pending())
	b.Accept(4)
	b.Consume(2)
	p.says(a, ResetRecord)
	assert.Equal(t, ResetEnd, b.EndReceived())
	assert.Zero(t, b.Pending(), "nobody will read it")
	assert.Zero(t, b.Space())
	p.says(b, ResetRecord)
	p.says(b, FinAckRecord)
	p.says(a, FinAckRecord)
	assert.Equal(t, Over, a.Stage())
	assert.Equal(t, Over, b.Stage())
}

func TestStreamSaysResetBehindFinOnlyBeforeThePeersEnd(t *testing.T) {
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	a.CloseWrite()
	p.says(a, FinRecord)
	a.Reset()
	require.Equal(t, ResetRecord, a.Due())
	b.CloseWrite()
	p.says(b, FinRecord)
	assert.Equal(t, FinAckRecord, a.Due(), "RESET has nothing to tell any more")
	a.Reset()
	assert.Equal(t, FinAckRecord, a.Due())
}

func TestStreamGivesNoCreditWhenItReadsNoMore(t *testing.T) {
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	p.writes(a, ringSize)
	b.Reset()
	p.says(b, ResetRecord)
	b.Consume(ringSize)
	assert.Equal(t, NoRecord, b.Due())
	ring, _, _, _ := b.Rings()
	assert.Equal(t, ringSize, ring, "a WRITE may be under way until the peer has ended")
	p.says(a, ResetRecord)
	ring, _, _, _ = b.Rings()
	assert.Zero(t, ring)
}

func TestStreamGrows(t *testing.T) {
	const large = 4 * ringSize
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	p.writes(a, 10)
	b.Offer(large)
	assert.False(t, b.MayOffer())
	assert.PanicsWithValue(t, "credit: a ring that must not be offered", func() { b.Offer(large) })
	p.says(b, RingRecord)

	a.Accept(3)
	n, newRing := a.Next()
	assert.Equal(t, 3, n)
	assert.True(t, newRing)
	p.sends(a)
	assert.Equal(t, 10+large-13, a.Space())
	ring, old, offered, base := b.Rings()
	assert.Equal(t, [...]int{large, ringSize, 0, 10}, [...]int{ring, old, offered, int(base)})
	assert.False(t, b.MayOffer(), "the old ring is to be drained")

	b.Consume(9)
	_, old, _, _ = b.Rings()
	assert.Equal(t, ringSize, old)
	b.Consume(10)
	_, old, _, _ = b.Rings()
	assert.Zero(t, old)
	assert.True(t, b.MayOffer())

	// The new ring can be filled to the last byte, and no further.
	p.writes(a, a.Space())
	assert.EqualValues(t, 10+large, b.Received())
	assert.Equal(t, NoRecord, b.Due())
	b.Consume(large / 4)
	assert.Equal(t, CreditRecord, b.Due(), "for a quarter of the new ring")
}

func TestStreamShrinksWhenWhatIsAcceptedFits(t *testing.T) {
	const little = ringSize / 4
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	b.Offer(little)
	p.says(b, RingRecord)
	a.Accept(little + 2)
	_, newRing := a.Next()
	assert.False(t, newRing)
	a.Send(2)
	require.NoError(t, b.Receive(2, false))
	n, newRing := a.Next()
	assert.Equal(t, 2, n, "up to the end of the little ring")
	assert.True(t, newRing)
	p.sends(a)
	assert.Zero(t, a.Space())
	p.sends(a)
	assert.EqualValues(t, little+2, b.Received())
}

func TestStreamAnswersAnOfferWithNoBytes(t *testing.T) {
	p := openStream(t)
	a, b := &p.dialer, &p.answer
	b.Offer(2 * ringSize)
	p.says(b, RingRecord)
	n, newRing := a.Next()
	assert.Zero(t, n)
	assert.True(t, newRing)
	p.sends(a)
	ring, old, offered, _ := b.Rings()
	assert.Equal(t, [...]int{2 * ringSize, 0, 0}, [...]int{ring, old, offered})
	_, newRing = a.Next()
	assert.False(t, newRing)
}

// TestStreamTakesBackAnOffer at its end, and not before the peer cannot have
// written to the new ring.
func TestStreamTakesBackAnOffer(t *testing.T) {
	offered := func(s *Stream) int { _, _, offered, _ := s.Rings(); return offered }
	t.Run("the peer ends", func(t *testing.T) {
		p := openStream(t)
		a, b := &p.dialer, &p.answer
		b.Offer(2 * ringSize)
		value := b.SendRecord(RingRecord)
		a.CloseWrite()
		fin := a.SendRecord(FinRecord)
		require.NoError(t, a.ReceiveRecord(RingRecord, value), "it was under way")
		_, newRing := a.Next()
		assert.False(t, newRing)
		assert.Equal(t, 2*ringSize, offered(b))
		require.NoError(t, b.ReceiveRecord(FinRecord, fin))
		assert.Zero(t, offered(b))
		assert.False(t, b.MayOffer())
	})
	t.Run("the peer ends instead of taking it", func(t *testing.T) {
		p := openStream(t)
		a, b := &p.dialer, &p.answer
		b.Offer(2 * ringSize)
		p.says(b, RingRecord)
		a.Reset()
		p.says(a, ResetRecord)
		_, newRing := a.Next()
		assert.False(t, newRing)
		assert.Zero(t, offered(b))
	})
	t.Run("the peer has ended before it is told", func(t *testing.T) {
		p := openStream(t)
		a, b := &p.dialer, &p.answer
		b.Offer(2 * ringSize)
		a.CloseWrite()
		p.says(a, FinRecord)
		assert.Zero(t, offered(b))
		assert.Equal(t, FinAckRecord, b.Due())
	})
	t.Run("this side resets", func(t *testing.T) {
		s := openStream(t).answer
		s.Offer(2 * ringSize)
		s.Reset()
		assert.Equal(t, RingRecord, s.Due())
		s.SendRecord(RingRecord)
		s.SendRecord(ResetRecord)
		assert.Equal(t, 2*ringSize, offered(&s), "the peer may take it yet")
		assert.False(t, s.MayOffer())
	})
	t.Run("the peer resets", func(t *testing.T) {
		p := openStream(t)
		a, b := &p.dialer, &p.answer
		b.Offer(2 * ringSize)
		p.says(b, RingRecord)
		b.Reset()
		p.says(b, ResetRecord)
		_, newRing := a.Next()
		assert.False(t, newRing)
		p.says(a, ResetRecord)
		assert.Zero(t, offered(b))
	})
}

func TestStreamPanicsWhenItIsToSayWhatIsNotDue(t *testing.T) {
	s := NewStream(ringSize)
	assert.PanicsWithValue(t, "credit: FIN is sent when OPEN is due", func() { s.SendRecord(FinRecord) })
	s.SendRecord(OpenRecord)
	assert.PanicsWithValue(t, "credit: none is sent when none is due", func() { s.SendRecord(NoRecord) })
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
