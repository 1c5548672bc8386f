// Package credit has the ledgers of a link and of its streams: what a side may send now, and
// what it has to send. It does no I/O, has no locks and reads no clock. Calls of the methods of
// one value must not overlap: the caller needs a lock.
//
// The package is for those who write another implementation of the protocol, or a test or a model
// of it, and want the rules of docs/protocol.md as code that is explored exhaustively. It imports
// nothing of ringnet. Programs that only use connections do not need it.
//
// There are four budgets. Each is regained by an event of its own, so they are counted
// separately: receives posted at the peer ([Link]); free bytes in the peer's rings ([Stream]);
// slots of this side's send queue ([Slots]); and entries of the completion queue, which are never
// short if it is as deep as both queues together.
//
// # The link
//
// A side posts D receives for data, whose number it tells the peer in the handshake, and
// [LinkControlReceives] for SENDs. A data message takes one of the peer's D receives; a SEND with
// records takes one of [RecordWindow]. The peer's engine polls the message, posts the receive
// again, and acknowledges the message in its next SEND; then the sender has the place back. No
// application takes part in that. When a side has not acknowledged a quarter of D, or
// [RecordCredit] SENDs, and has no record to send, it sends a SEND without records, called link
// credit. A link credit takes no place in a window and is never acknowledged.
//
// # The streams
//
// A side accepts bytes of a stream only when they have room in the peer's ring. So it can send
// all that it has accepted, whatever the peer's application does. CREDIT gives the room back. It
// is due when the application has consumed a quarter of the ring since the last CREDIT. A stream
// may be given another ring, and each of its directions ends by itself. A stream sends a bounded
// number of records other than CREDIT, and one CREDIT for each quarter of a ring.
//
// # The promises
//
// A message always finds a receive posted. Neither side waits for ever. No memory and no stream
// number is used again while the peer may still use it as before. docs/protocol.md has the rules
// and the proof. The tests explore small instances to the end, and instances of the product's
// size by random walks; and they change the rules one by one to show that each is needed.
//
// The package promises no API before v1.
package credit
