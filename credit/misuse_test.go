package credit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What this side must not do panics, before a peer is told of it.
func TestMisusePanics(t *testing.T) {
	for name, misuse := range map[string]func(s *Stream, l *Link){
		"accepting more than there is room for": func(s *Stream, _ *Link) { s.Accept(17) },
		"accepting less than nothing":           func(s *Stream, _ *Link) { s.Accept(-1) },
		"sending what was not accepted":         func(s *Stream, _ *Link) { s.Accept(1); s.Send(2) },
		"sending nothing to the same ring":      func(s *Stream, _ *Link) { s.Send(0) },
		"consuming what has not come":           func(s *Stream, _ *Link) { s.Consume(1) },
		"offering a ring behind another":        func(s *Stream, _ *Link) { s.Offer(32); s.Offer(64) },
		"sending a record that is not due":      func(s *Stream, _ *Link) { s.SendRecord(FinRecord) },
		"a data message without credit":         func(_ *Stream, l *Link) { l.SendData(); l.SendData(); l.SendData() },
		"records without credit": func(_ *Stream, l *Link) {
			for range RecordWindow + 1 {
				l.SendRecords()
			}
		},
		"a link credit that is not due": func(_ *Stream, l *Link) { l.SendCredit() },
	} {
		t.Run(name, func(t *testing.T) {
			s := Stream{stage: Open, outgoing: outgoing{peerRing: 16}, incoming: incoming{ring: 16}}
			l := NewLink(8, 2)
			require.Panics(t, func() { misuse(&s, &l) })
		})
	}
}
