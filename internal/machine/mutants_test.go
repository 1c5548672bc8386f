package machine

import (
	"testing"

	"github.com/ringnet/ringnet/internal/testing/mutants"
)

// edits leave out steps of the machine, which the explorations of it find.
var edits = []mutants.Mutant{
	{Name: "what the peer has not received is not sent again", File: "retransmit.go", Old: "	r.again = r.len()\n", New: ""},
	{Name: "what is sent again has the old key", File: "retransmit.go", Old: "		m.rkey = x.Peer.Key(wire.RingPlace{Addr: m.addr, RKey: m.rkey})\n", New: ""},
	{Name: "records sent again tell of old keys", File: "retransmit.go", Old: "				x.Own.Rekey(r)\n", New: "				_ = r\n"},
	{Name: "rings of the peer keep their old keys", File: "retransmit.go", Old: "		s.peer.RKey, s.next.RKey, s.named.Ring.RKey = x.Peer.Key(s.peer), x.Peer.Key(s.next), x.Peer.Key(s.named.Ring)\n", New: ""},
	{Name: "what is new overtakes what is sent again", File: "send.go", Old: "l.mayPost() && l.unacked.again == 0", New: "l.mayPost()"},
	{Name: "link credits of the queue pair before are waited for", File: "retransmit.go", Old: "	q.control.credits.forget()\n", New: ""},
	{Name: "what the peer acknowledges is kept", File: "receive.go", Old: "		err = l.trimAcknowledged()\n", New: ""},
	{Name: "receives are not posted again", File: "receive.go", Old: "	l.postReceives(l.qp.spent)\n", New: ""},
	{Name: "receives of records are not posted again", File: "receive.go", Old: "	l.postReceives(control)\n", New: "	_ = control\n"},
	{Name: "the staging memory is freed too soon", File: "staging.go", Old: "c.copying || c.from != c.to || c.sent != 0 && !c.sent.completed(&l.send.slots)", New: "c.copying || c.from != c.to"},
	{Name: "Writes that wait for staging memory are not woken", File: "staging.go", Old: "		l.touchStagingLine()\n	}\n}\n\n// touchStagingLine touches", New: "	}\n}\n\n// touchStagingLine touches"},
	{Name: "records that are due are not sent", File: "stream.go", Old: "		l.send.withRecords.push(s)\n", New: ""},
	{Name: "what has not been read is not read from the ring before", File: "inbox.go", Old: "		n, p = min(n, left), s.inbox.drained\n", New: "		n = min(n, left)\n"},
	{Name: "bytes that were dropped count as sent", File: "close.go", Old: "	s.ledger.Drop()\n", New: ""},
	{Name: "the key exchange keeps its slot", File: "receive.go", Old: "				l.send.slots.CompleteOther()\n", New: ""},
	{Name: "slots run out, and nothing that has them is signaled", File: "send.go", Old: "	return q.slots.Unsignaled() >= few\n", New: "	return false && few > 0\n"},
	{Name: "buffers of records are not signaled", File: "control.go", Old: "	l.send.signal = l.send.signal || last\n", New: "	_ = last\n"},
	{Name: "what is sent again is not signaled", File: "retransmit.go", Old: "		q.signal = true\n", New: ""},
	{Name: "the queue pair is not disconnected", File: "life.go", Old: "	l.qp.state = qpError\n	return true\n", New: "	return false\n"},
	{Name: "a link goes on before all receives are back", File: "life.go", Old: "l.qp.posted == 0 && !l.send.posting", New: "!l.send.posting"},
}

// TestMutants sees that the explorations fail with each: make mutants.
func TestMutants(t *testing.T) { mutants.Run(t, edits, "TestExplore") }
