package credit

import "fmt"

// Sender is the sending half of the ledger: what the peer has room for. Bytes
// are first accepted, which claims their place in the peer's ring, and sent
// later: so whatever was accepted can be sent whatever the peer's application
// does.
type Sender struct {
	ring, receives uint64 // the peer's R and D

	accepted uint64 // bytes
	sent     uint64 // bytes, ≤ accepted
	messages uint64 // data messages sent

	consumed uint64 // what the last CREDIT said
	reposted uint64
}

// NewSender returns the ledger for a peer with a ring of the given size in
// bytes and the given number of receives for data.
func NewSender(ring, receives int) Sender {
	return Sender{ring: uint64(ring), receives: uint64(receives)}
}

// Space is the number of bytes that can be accepted now.
func (s *Sender) Space() int { return int(s.consumed + s.ring - s.accepted) }

// Accept claims n bytes of the peer's ring, at most Space.
func (s *Sender) Accept(n int) {
	if n < 0 || n > s.Space() {
		panic(fmt.Sprintf("credit: accepting %d bytes with space for %d", n, s.Space()))
	}
	s.accepted += uint64(n)
}

// Pending is the number of bytes accepted and not yet sent.
func (s *Sender) Pending() int { return int(s.accepted - s.sent) }

// Position is the stream position of the next byte to send.
func (s *Sender) Position() uint64 { return s.sent }

// Accepted is the stream position of the next byte to accept.
func (s *Sender) Accepted() uint64 { return s.accepted }

// MaySend says whether the peer has a receive posted for one more message.
func (s *Sender) MaySend() bool { return s.messages-s.reposted < s.receives }

// Send records one data message with the next n pending bytes.
func (s *Sender) Send(n int) {
	if n <= 0 || n > s.Pending() || !s.MaySend() {
		panic(fmt.Sprintf("credit: sending %d of %d bytes, message %d of %d",
			n, s.Pending(), s.messages+1, s.reposted+s.receives))
	}
	s.sent += uint64(n)
	s.messages++
}

// Credit takes a CREDIT of the peer: the bytes it has consumed and the data
// messages whose receives it has posted again, both since the beginning. An
// error means that the peer does not keep the protocol.
func (s *Sender) Credit(consumed, reposted uint64) error {
	switch {
	case consumed < s.consumed || reposted < s.reposted:
		return fmt.Errorf("credit runs backwards: %d bytes, %d messages after %d, %d",
			consumed, reposted, s.consumed, s.reposted)
	case consumed > s.sent || reposted > s.messages:
		return fmt.Errorf("credit for %d bytes, %d messages when %d, %d were sent",
			consumed, reposted, s.sent, s.messages)
	}
	s.consumed, s.reposted = consumed, reposted
	return nil
}
