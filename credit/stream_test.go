package credit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Package link's tests have the breaches of peers; these are of no message that one could send, or depend
// on what this side has not sent yet. The ledger is as before.
func TestStreamBelievesNothingImpossible(t *testing.T) {
	for want, prepare := range map[string]func(dialer, s *Stream) (breach func() error){
		"unexpected OPEN": func(_, s *Stream) func() error {
			return func() error { return s.ReceiveRecord(OpenRecord, 16) }
		},
		"data message of -1 bytes": func(_, s *Stream) func() error {
			return func() error { return s.Receive(-1, false) }
		},
		"data message of -2 bytes": func(_, s *Stream) func() error {
			s.Offer(4)
			s.SendRecord(RingRecord)
			return func() error { return s.Receive(-2, true) }
		},
		"data for a new ring when none was offered": func(_, s *Stream) func() error {
			s.Offer(4)
			return func() error { return s.Receive(1, true) }
		},
		"RESET behind FINACK": func(dialer, s *Stream) func() error {
			s.CloseWrite()
			require.NoError(t, dialer.ReceiveRecord(FinRecord, s.SendRecord(FinRecord)))
			require.NoError(t, s.ReceiveRecord(FinAckRecord, dialer.SendRecord(FinAckRecord)))
			dialer.CloseWrite()
			require.NoError(t, s.ReceiveRecord(FinRecord, dialer.SendRecord(FinRecord)))
			return func() error { return s.ReceiveRecord(ResetRecord, 0) }
		},
	} {
		dialer := NewStream(16)
		s := AcceptStream(16, int(dialer.SendRecord(OpenRecord)))
		require.NoError(t, dialer.ReceiveRecord(AcceptRecord, s.SendRecord(AcceptRecord)))
		breach := prepare(&dialer, &s)
		before := s
		assert.EqualError(t, breach(), want)
		assert.Equal(t, before, s, want)
	}
}

// A side whose process may end when FIN has arrived tells before what was read: for a quarter of the
// ring it would have told anyway. What is dropped is not told.
func TestStreamTellsWhatWasReadBeforeItEnds(t *testing.T) {
	for name, end := range map[string]struct {
		does func(s *Stream)
		says []Record
	}{
		"CloseWrite": {func(s *Stream) { s.CloseWrite() }, []Record{CreditRecord, FinRecord}},
		"CloseWrite, and more is read then": {func(s *Stream) {
			s.CloseWrite()
			s.SendRecord(CreditRecord)
			s.Consume(3)
		}, []Record{FinRecord}},
		"again, when FIN has been sent": {func(s *Stream) {
			s.CloseWrite()
			s.SendRecord(CreditRecord)
			s.SendRecord(FinRecord)
			s.Consume(3)
			s.CloseWrite()
		}, []Record{CreditRecord}},
		"Reset, of what was dropped": {func(s *Stream) {
			s.Accept(1)
			s.Reset()
			s.Consume(8)
		}, nil},
	} {
		s := Stream{stage: Open, outgoing: outgoing{peerRing: 16}, incoming: incoming{ring: 16}}
		require.NoError(t, s.Receive(8, false))
		s.Consume(2)
		require.Equal(t, NoRecord, s.Due(), name)
		end.does(&s)
		var says []Record
		for s.Due() != NoRecord {
			says = append(says, s.Due())
			s.SendRecord(s.Due())
		}
		require.Equal(t, end.says, says, name)
	}
}

func TestRecordsHaveNames(t *testing.T) {
	var names []string
	for r := range GoAwayRecord + 2 {
		names = append(names, r.String())
	}
	require.Equal(t, "none|OPEN|ACCEPT|REFUSE|CREDIT|RING|FIN|RESET|FINACK|GOAWAY|record of type 10", strings.Join(names, "|"))
}
