package credit

import "fmt"

// Receiver is the receiving half of the ledger: what the peer may still send,
// and the CREDIT that is owed for what has been dealt with.
type Receiver struct {
	ring, receives uint64 // our R and D

	received uint64 // bytes
	messages uint64 // data messages received, their receives posted again
	consumed uint64 // bytes, ≤ received

	advertised         uint64 // bytes consumed, as the last CREDIT said
	advertisedMessages uint64
	outstanding        bool // the last CREDIT has not completed
}

// NewReceiver returns the ledger of a ring of the given size in bytes and the
// given number of receives for data.
func NewReceiver(ring, receives int) Receiver {
	return Receiver{ring: uint64(ring), receives: uint64(receives)}
}

// Receive records a data message of n bytes whose receive has been posted
// again. An error means that the peer does not keep the protocol.
func (r *Receiver) Receive(n int) error {
	switch {
	case n <= 0:
		return fmt.Errorf("data message of %d bytes", n)
	case r.received+uint64(n) > r.advertised+r.ring:
		return fmt.Errorf("data up to byte %d when credit ends at %d", r.received+uint64(n), r.advertised+r.ring)
	case r.messages+1 > r.advertisedMessages+r.receives:
		return fmt.Errorf("data message %d when credit ends at %d", r.messages+1, r.advertisedMessages+r.receives)
	}
	r.received += uint64(n)
	r.messages++
	return nil
}

// Received is the stream position of the next byte to receive.
func (r *Receiver) Received() uint64 { return r.received }

// Consume records that the ring has room again for the bytes before the given
// stream position.
func (r *Receiver) Consume(position uint64) {
	if position < r.consumed || position > r.received {
		panic(fmt.Sprintf("credit: consumed up to %d after %d, with %d received", position, r.consumed, r.received))
	}
	r.consumed = position
}

// Due says whether a CREDIT is to be sent now.
func (r *Receiver) Due() bool {
	return !r.outstanding &&
		(r.consumed-r.advertised >= r.ring/4 || r.messages-r.advertisedMessages >= r.receives/4)
}

// Advertise records that a CREDIT is being sent and returns what it says.
func (r *Receiver) Advertise() (consumed, reposted uint64) {
	r.advertised, r.advertisedMessages, r.outstanding = r.consumed, r.messages, true
	return r.consumed, r.messages
}

// Completed records that the send of the last CREDIT has completed.
func (r *Receiver) Completed() { r.outstanding = false }
