package credit

import "fmt"

// The numbers of receives and send slots for the control messages of a link. docs/protocol.md
// has the proof that they are enough, and link_explore_test.go visits every state of small
// instances.
const (
	// RecordWindow is how many record SENDs of a side may be unacknowledged.
	RecordWindow = 8

	// RecordCredit is how many record SENDs of the peer make a link credit due.
	RecordCredit = 4

	// CreditsPerWindow is how many credits a whole window takes. CREDIT is due for a quarter of a
	// ring, and a link credit for a quarter of the receives for data, which are a multiple of it.
	CreditsPerWindow = 4
	// LinkControlReceives is the number of receives that a side posts for SENDs: one for each
	// record SEND of a window, and one for each link credit that may be under way. The peer
	// sends one for each RecordCredit record SENDs and for each quarter of the data messages
	// that this side may have unacknowledged.
	LinkControlReceives = RecordWindow + RecordWindow/RecordCredit + CreditsPerWindow

	// LinkControlSends is the number of send slots that data messages leave free: for a window
	// of record SENDs, a link credit and a keepalive.
	LinkControlSends = RecordWindow + 2
)

// Totals counts the messages of one side since the link began.
type Totals struct {
	Data    uint64 // data messages
	Records uint64 // record SENDs
}

// Link is the ledger of a link's receives at one side. Data messages and record SENDs each have a
// window, which the peer's engine opens when it acknowledges messages that it has polled. A link
// credit, a SEND that only acknowledges, takes no place in a window: the number of link credits is
// bounded by the messages that they acknowledge. SendData, SendRecords and SendCredit panic if
// MaySendData, MaySendRecords or CreditDue is false.
type Link struct {
	receives uint64 // for data, posted by this side
	window   uint64 // for data, posted by the peer

	recordWindow uint64 // RecordWindow, but in small instances for tests
	recordCredit uint64 // RecordCredit

	sent     Totals // by this side
	acked    Totals // of those, acknowledged by the peer
	received Totals // sent by the peer and polled; their receives are posted again by the time that they are acknowledged
	told     Totals // of those, acknowledged by this side
}

// NewLink returns the ledger of a side. receives is how many receives for data it has posted, and
// window how many its peer has posted. Both are multiples of
// CreditsPerWindow.
func NewLink(receives, window int) Link {
	return Link{
		receives:     uint64(receives),
		window:       uint64(window),
		recordWindow: RecordWindow,
		recordCredit: RecordCredit,
	}
}

// MaySendData reports whether the peer has a receive posted for one more data
// message.
func (l *Link) MaySendData() bool { return l.sent.Data-l.acked.Data < l.window }

// MaySendRecords reports whether the peer has a receive posted for one more record
// SEND.
func (l *Link) MaySendRecords() bool { return l.sent.Records-l.acked.Records < l.recordWindow }

// Sent returns how many messages this side has sent.
func (l *Link) Sent() Totals { return l.sent }

// Acknowledged returns how many messages of this side the peer has acknowledged.
func (l *Link) Acknowledged() Totals { return l.acked }

// CreditDue reports whether this side has to send a link credit, or a record SEND, which
// acknowledges as much.
func (l *Link) CreditDue() bool {
	return l.received.Data-l.told.Data >= l.receives/CreditsPerWindow || l.received.Records-l.told.Records >= l.recordCredit
}

// SendData records that a data message is being sent.
func (l *Link) SendData() {
	if !l.MaySendData() {
		panic(fmt.Sprintf("credit: data message %d of %d", l.sent.Data+1, l.acked.Data+l.window))
	}
	l.sent.Data++
}

// SendRecords records that a record SEND is being sent, and returns what it acknowledges. The
// caller has posted the receives of those messages again.
func (l *Link) SendRecords() Totals {
	if !l.MaySendRecords() {
		panic(fmt.Sprintf("credit: record SEND %d of %d", l.sent.Records+1, l.acked.Records+l.recordWindow))
	}
	l.sent.Records++
	return l.Acknowledge()
}

// SendCredit records that a link credit is being sent, and returns what it acknowledges, as
// SendRecords does.
func (l *Link) SendCredit() Totals {
	if !l.CreditDue() {
		panic("credit: link credit that is not due")
	}
	return l.Acknowledge()
}

// Received returns how many messages of the peer this side has polled. It tells the peer these
// numbers when the link goes on over another queue pair.
func (l *Link) Received() Totals { return l.received }

// Unacknowledged returns how many data messages and record SENDs this side has sent and the peer
// has not acknowledged.
func (l *Link) Unacknowledged() int {
	return int(l.sent.Data - l.acked.Data + l.sent.Records - l.acked.Records)
}

// Acknowledge records that all messages that this side has polled are being acknowledged, for
// example by a record SEND that is sent again, and returns how many they are. The caller has posted
// their receives again.
func (l *Link) Acknowledge() Totals {
	l.told = l.received
	return l.told
}

// Resume records that the link goes on over another queue pair, with all receives posted anew.
// received is what the peer has told of its Received. The messages that this side has sent beyond
// that are lost: the caller sends them again, in the same order and before anything else, and
// does not record them again. The error means that the peer broke the protocol.
func (l *Link) Resume(received Totals) error {
	if err := l.check(received); err != nil {
		return err
	}
	l.acked = received
	l.told = l.received
	return nil
}

// ReceiveData records a data message that has been polled. The error means that the peer broke the
// protocol.
func (l *Link) ReceiveData() error {
	if l.received.Data-l.told.Data == l.receives {
		return fmt.Errorf("data message %d when %d were granted", l.received.Data+1, l.told.Data+l.receives)
	}
	l.received.Data++
	return nil
}

// ReceiveRecords records a record SEND that has been polled, and what it acknowledges. The error
// means that the peer broke the protocol.
func (l *Link) ReceiveRecords(acked Totals) error {
	if l.received.Records-l.told.Records == l.recordWindow {
		return fmt.Errorf("record SEND %d when %d were granted", l.received.Records+1, l.told.Records+l.recordWindow)
	}
	if err := l.check(acked); err != nil {
		return err
	}
	l.received.Records++
	l.acked = acked
	return nil
}

// ReceiveCredit records a link credit that has been polled. The error means that the peer broke
// the protocol.
func (l *Link) ReceiveCredit(acked Totals) error {
	if err := l.check(acked); err != nil {
		return err
	}
	data, records := acked.Data-l.acked.Data, acked.Records-l.acked.Records
	if data < l.window/CreditsPerWindow && records < l.recordCredit {
		return fmt.Errorf("link credit for %d data messages and %d record SENDs", data, records)
	}
	l.acked = acked
	return nil
}

// check returns an error if the peer acknowledges what it cannot.
func (l *Link) check(acked Totals) error {
	switch {
	case acked.Data < l.acked.Data || acked.Records < l.acked.Records:
		return fmt.Errorf("acknowledgement runs backwards: %+v after %+v", acked, l.acked)
	case acked.Data > l.sent.Data || acked.Records > l.sent.Records:
		return fmt.Errorf("acknowledgement of %+v when %+v were sent", acked, l.sent)
	}
	return nil
}
