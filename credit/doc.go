// Package credit is the ledgers of a link and of its streams: what may be sent now, and
// what is due to be sent to the peer. It is pure bookkeeping: no I/O, no locks, no clock;
// its caller serialises the calls.
//
// It is for those who write another implementation of the protocol, or a test or a model of
// it, and want the rules of docs/protocol.md as code that is explored exhaustively. It
// imports nothing of ringnet. Programs that only use connections do not need it.
//
// Four budgets are kept apart, since each is regained on an event of its own:
// receives posted at the peer ([Link]), bytes free in the peer's rings ([Stream]),
// slots of the own send queue ([Slots]), and, by choosing the depth of the
// completion queue as the sum of both queues, completion queue entries.
//
// # The link
//
// A side posts D receives for data, and tells the peer D in the handshake, and
// [LinkControlReceives] for SENDs. A data message takes one of the peer's D; a SEND
// with records one of [RecordWindow]. Both are regained when the peer's engine has
// polled the message and acknowledges it, which every SEND does; before it does, it posts
// the receive again. No application has a part in it. When a quarter of D, or [RecordCredit]
// SENDs, have not been acknowledged and this side has no record to send, it sends a SEND
// without records, link credit. That takes no place in a window and is never acknowledged.
//
// # The streams
//
// A side accepts bytes of a stream when they have their place in the peer's ring,
// so whatever was accepted can be sent whatever the peer's application does. The
// place is regained by CREDIT, which is due when the application has consumed a
// quarter of the ring since the last. A stream may be given another ring, and ends
// in each direction by itself. Of all records but CREDIT a stream has a bounded
// number to say; CREDITs are as rare as quarters of the ring.
//
// # The promises
//
// No receive is ever missing, neither side waits for ever, and no memory and no number of
// a stream is used again while the peer may still mean what it was before.
// docs/protocol.md has the rules and the proof. The tests explore small instances to
// the end, the product's by walks at random, and change the rules one by one to see
// that each is needed.
//
// The package promises no API before v1.
package credit
