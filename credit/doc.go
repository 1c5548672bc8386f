// Package credit is the ledger of a connection: what may be sent now, what is
// owed to the peer, and when to pay. It is pure bookkeeping: no I/O, no locks,
// no clock; its caller serialises the calls.
//
// Four budgets are kept apart, since each is regained on an event of its own:
// bytes free in the peer's ring and receives posted at the peer ([Sender]),
// slots of the own send queue ([Slots]), and, by choosing the depth of the
// completion queue as the sum of both queues, completion queue entries.
//
// # The scheme
//
// A ring has R bytes and a side posts D receives for data, both divisible by 4,
// and [ControlReceives] for control messages. R and D are told once, in the
// handshake.
//
// A data message takes its bytes from the peer's ring and one of the D
// receives. The peer gives back both with CREDIT, which carries totals: bytes
// that its application has consumed, and data messages whose receives it has
// posted again. A CREDIT is sent when a quarter of R or of D has come together
// since the last and that one has completed; on no other occasion.
//
// Why no receive is ever missing: beyond the last CREDIT that it has processed,
// a side sends at most R bytes and D messages. The CREDITs that its peer sends
// meanwhile each stand for a quarter of the one or the other, so at most 8 are
// on their way. With one FIN, one FINACK and one RESET that makes D + 11.
//
// Why nobody waits for ever: who has used up R knows that the other has all of
// R unread, and owes a CREDIT once a quarter of it is read, however it is read.
// Who has used up D is given more by the other's polling alone. Control
// messages wait for no credit, and for no send slot, since data leaves
// [ControlSends] slots free and at most that many control messages and
// keepalives are outstanding.
//
// The package promises no API before v1.
package credit

// What is set aside for control messages.
const (
	// ControlReceives is the number of receives posted beyond the D for data:
	// 8 CREDITs, FIN, FINACK and RESET may arrive unasked.
	ControlReceives = 11

	// ControlSends is the number of send slots that data leaves free: one each
	// for CREDIT, FIN, FINACK, RESET and a keepalive.
	ControlSends = 5
)
