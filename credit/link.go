package credit

import "fmt"

// What a side sets aside for the control messages of a link, beyond the
// receives for data. docs/protocol.md has the proof, and
// link_explore_test.go visits every state of small instances.
const (
	// RecordWindow is how many record SENDs of a side may be unacknowledged.
	RecordWindow = 8

	// RecordCredit is for how many record SENDs a link credit is sent.
	RecordCredit = 4

	// LinkControlReceives is the number of receives posted beyond those for
	// data: a window of record SENDs, and a link credit for each RecordCredit
	// record SENDs and each quarter of the data messages that the peer may have
	// seen of this side and this side not yet know of.
	LinkControlReceives = RecordWindow + RecordWindow/RecordCredit + 4

	// LinkControlSends is the number of send slots that data leaves free: a
	// window of record SENDs, a link credit and a keepalive.
	LinkControlSends = RecordWindow + 2
)

// Totals counts the messages of one side since the link began.
type Totals struct {
	Data    uint64 // data messages
	Records uint64 // record SENDs
}

// Link is the ledger of a link's receives. Data messages and record SENDs each
// have a window, which the peer's engine opens by acknowledging what it has polled, whose
// receives it has posted again, whatever any application does. Link credit, a SEND
// that only acknowledges, has none: it is sent only for what the peer has sent.
type Link struct {
	receives uint64 // for data, posted by this side
	window   uint64 // for data, posted by the peer

	recordWindow uint64 // RecordWindow, but in small instances for tests
	recordCredit uint64 // RecordCredit

	sent     Totals // by this side
	acked    Totals // of those, acknowledged by the peer
	reposted Totals // sent by the peer and polled; their receives are posted again by the time that they are acknowledged
	told     Totals // of those, acknowledged by this side
}

// NewLink returns the ledger of a side that has posted receives for data, whose
// peer has posted window. Both are multiples of 4.
func NewLink(receives, window int) Link {
	return Link{
		receives:     uint64(receives),
		window:       uint64(window),
		recordWindow: RecordWindow,
		recordCredit: RecordCredit,
	}
}

// MaySendData says whether the peer has a receive posted for one more data
// message.
func (l *Link) MaySendData() bool { return l.sent.Data-l.acked.Data < l.window }

// MaySendRecords says whether the peer has a receive posted for one more record
// SEND.
func (l *Link) MaySendRecords() bool { return l.sent.Records-l.acked.Records < l.recordWindow }

// CreditComing says whether the peer is certain to acknowledge data messages once
// it has polled those that this side has sent: they are a quarter of its receives,
// for which it sends link credit.
func (l *Link) CreditComing() bool { return l.sent.Data-l.acked.Data >= l.window/4 }

// CreditDue says whether link credit is to be sent, unless a record SEND that
// acknowledges as much goes instead.
func (l *Link) CreditDue() bool {
	return l.reposted.Data-l.told.Data >= l.receives/4 || l.reposted.Records-l.told.Records >= l.recordCredit
}

// SendData records that a data message is being sent.
func (l *Link) SendData() {
	if !l.MaySendData() {
		panic(fmt.Sprintf("credit: data message %d of %d", l.sent.Data+1, l.acked.Data+l.window))
	}
	l.sent.Data++
}

// SendRecords records that a record SEND is being sent and returns what it acknowledges,
// the receives for which the caller has posted again.
func (l *Link) SendRecords() Totals {
	if !l.MaySendRecords() {
		panic(fmt.Sprintf("credit: record SEND %d of %d", l.sent.Records+1, l.acked.Records+l.recordWindow))
	}
	l.sent.Records++
	return l.Acknowledge()
}

// SendCredit records that a link credit is being sent and returns what it acknowledges, the
// receives for which the caller has posted again.
func (l *Link) SendCredit() Totals {
	if !l.CreditDue() {
		panic("credit: link credit that is not due")
	}
	return l.Acknowledge()
}

// Received is what this side has polled of the peer's messages: what it tells the peer when
// the link goes on over another queue pair.
func (l *Link) Received() Totals { return l.reposted }

// Unacknowledged is how many messages this side has sent, data and record SENDs, that
// the peer has not acknowledged.
func (l *Link) Unacknowledged() int {
	return int(l.sent.Data - l.acked.Data + l.sent.Records - l.acked.Records)
}

// Acknowledge records that what this side has polled is acknowledged, for example by a
// record SEND that is sent again, and returns how much that is. The caller has posted the
// receives for it again.
func (l *Link) Acknowledge() Totals {
	l.told = l.reposted
	return l.told
}

// Resume has the link go on over another queue pair, with all receives posted anew,
// when both sides have told each other what they have received. What this side has
// sent beyond what the peer received is lost, and is to be sent again, in the same
// order and before anything else; it is not recorded once more.
func (l *Link) Resume(received Totals) error {
	if err := l.check(received); err != nil {
		return err
	}
	l.acked = received
	l.told = l.reposted
	return nil
}

// ReceiveData records a data message that has been polled. An error, here and below, means
// that the peer does not keep the protocol.
func (l *Link) ReceiveData() error {
	if l.reposted.Data-l.told.Data == l.receives {
		return fmt.Errorf("data message %d when %d were granted", l.reposted.Data+1, l.told.Data+l.receives)
	}
	l.reposted.Data++
	return nil
}

// ReceiveRecords records a record SEND that has been polled, and what it acknowledges.
func (l *Link) ReceiveRecords(acked Totals) error {
	if l.reposted.Records-l.told.Records == l.recordWindow {
		return fmt.Errorf("record SEND %d when %d were granted", l.reposted.Records+1, l.told.Records+l.recordWindow)
	}
	if err := l.check(acked); err != nil {
		return err
	}
	l.reposted.Records++
	l.acked = acked
	return nil
}

// ReceiveCredit records a link credit that has been polled.
func (l *Link) ReceiveCredit(acked Totals) error {
	if err := l.check(acked); err != nil {
		return err
	}
	data, records := acked.Data-l.acked.Data, acked.Records-l.acked.Records
	if data < l.window/4 && records < l.recordCredit {
		return fmt.Errorf("link credit for %d data messages and %d record SENDs", data, records)
	}
	l.acked = acked
	return nil
}

// check says what is wrong with what the peer acknowledges.
func (l *Link) check(acked Totals) error {
	switch {
	case acked.Data < l.acked.Data || acked.Records < l.acked.Records:
		return fmt.Errorf("acknowledgement runs backwards: %+v after %+v", acked, l.acked)
	case acked.Data > l.sent.Data || acked.Records > l.sent.Records:
		return fmt.Errorf("acknowledgement of %+v when %+v were sent", acked, l.sent)
	}
	return nil
}
