package credit

import (
	"bytes"
	"fmt"
	"slices"
)

// A model of two sides of a link, each with its ledger as an engine uses it. What
// the messages say is of no concern here: a side sends data and records whenever
// it may, or does not, so that whatever streams do is covered.
//
// A message that has been posted by a side holds a receive of its peer's until
// that has polled it and posted the receive again: it may have arrived. The
// completions of sends are polled in any order relative to everything else.

// linkMessage is what takes a receive at the peer.
type linkMessage struct {
	kind  linkKind
	acked Totals // of record SENDs and link credit
}

type linkKind uint8

const (
	dataMessage linkKind = iota
	recordSend
	linkCredit
	linkKinds
)

func (k linkKind) String() string {
	return [...]string{"data", "record SEND", "link credit"}[k]
}

type linkSide struct {
	ledger      Link
	outstanding [linkKinds]int     // posted and not completed, as far as this side knows
	held        int                // receives polled and not posted again
	inbox       queue[linkMessage] // sent by the peer and not polled
	log         queue[linkKind]    // sent and, as far as this side knows, not received; without link credit
}

type linkState [2]linkSide

// normalize subtracts from all totals of a direction what its sender knows to
// be acknowledged, which no decision sees.
func (s *linkState) normalize() {
	for i := range s {
		by := s[i].ledger.rebase(&s[1-i].ledger)
		for j := range s[i].inbox.all() {
			if m := &s[i].inbox.at[j]; m.kind != dataMessage {
				m.acked.subtract(by)
			}
		}
	}
}

// rebase subtracts from all totals of the direction that l sends, at both its
// ends, what l knows to be acknowledged, and returns how much that is.
func (l *Link) rebase(peer *Link) Totals {
	by := l.acked
	for _, t := range []*Totals{&l.sent, &l.acked, &peer.received, &peer.told} {
		t.subtract(by)
	}
	return by
}

func (t *Totals) subtract(by Totals) {
	t.Data -= by.Data
	t.Records -= by.Records
}

func (t *Totals) code(c *codec) {
	number(c, &t.Data)
	number(c, &t.Records)
}

// code is for a ledger that has been rebased.
func (l *Link) code(c *codec) {
	l.sent.code(c)
	l.received.code(c)
	l.told.code(c)
}

func (a *linkSide) code(c *codec) {
	a.ledger.code(c)
	for k := range a.outstanding {
		number(c, &a.outstanding[k])
	}
	number(c, &a.held)
	a.inbox.code(c, func(m *linkMessage) {
		number(c, &m.kind)
		m.acked.code(c)
	})
	a.log.code(c, func(k *linkKind) { number(c, k) })
}

// linkRules are the scheme, which a mutant changes, and the world it is put in.
type linkRules struct {
	data    int    // D of both sides
	records uint64 // W
	credit  uint64 // T
	control int    // receives beyond D

	sendQueue int  // slots that data may take; 0: sends complete at once
	oneWay    bool // only one side has data
	breaks    bool // the queue pair breaks now and then, and the link goes on over another

	// Mutants.
	repostLate  bool // counts a message before its receive is posted again
	creditEarly bool // sends link credit for anything
	creditNever bool // has it ride on records only
	slotsByWord bool // frees send slots when the peer answers
	dataAnyTime bool // heeds no window for data
	replayNone  bool // sends nothing again
	replayAll   bool // sends again what the peer has not acknowledged, received or not
	replayOld   bool // sends records again as they were, with what they acknowledged then
	resumeDeaf  bool // does not take what the peer has received for acknowledged
	resumeMute  bool // does not take what it has received for told

	need int // the most receives taken at once so far
}

func linkWorld(data, records, credit int) *linkRules {
	return &linkRules{data: data, records: uint64(records), credit: uint64(credit), control: records + records/credit + 4}
}

// linkOp is something that happens at a side.
type linkOp uint8

const (
	// What a side may do and need not.
	sendsData linkOp = iota
	sendsRecords
	// What an engine does sooner or later.
	sendsCredit
	pollsReceive
	repostsReceives
	pollsDataSend
	pollsRecordSend
	pollsCreditSend
	// What happens to both sides.
	breaks
	linkOps
)

var linkOpNames = [...]string{"sends data", "sends records", "sends link credit",
	"polls a receive", "posts receives again", "polls the completion of data", "polls that of records", "polls that of link credit",
	"and its peer lose the queue pair, and get another"}

type linkAction struct {
	side int
	op   linkOp
}

func (a linkAction) String() string { return fmt.Sprintf("%c %s", 'A'+a.side, linkOpNames[a.op]) }

func (w *linkRules) start() *linkState {
	s := new(linkState)
	for i := range s {
		s[i].ledger = w.ledger()
	}
	return s
}

func (w *linkRules) ledger() Link {
	l := NewLink(w.data, w.data)
	l.recordWindow, l.recordCredit = w.records, w.credit
	return l
}

// code takes states that differ by an exchange of the sides for alike if the
// rules are the same for both.
func (w *linkRules) code(s *linkState, c *codec) {
	if c.reading {
		*s = linkState{{ledger: w.ledger()}, {ledger: w.ledger()}}
		s[0].code(c)
		s[1].code(c)
		return
	}
	begin := len(c.buf)
	s[0].code(c)
	middle := len(c.buf)
	s[1].code(c)
	if first, second := c.buf[begin:middle], c.buf[middle:]; !w.oneWay && bytes.Compare(second, first) < 0 {
		c.buf = append(append(c.buf, second...), first...)
		c.buf = slices.Delete(c.buf, begin, begin+len(first)+len(second))
	}
}

func (w *linkRules) choices(s *linkState, found func(act linkAction, progress bool)) {
	for side := range s {
		for op := range breaks {
			if act := (linkAction{side, op}); w.may(s, act) {
				found(act, op > sendsRecords)
			}
		}
	}
	if w.breaks {
		found(linkAction{0, breaks}, false)
	}
}

// may reports whether an op is possible at a side.
func (w *linkRules) may(s *linkState, act linkAction) bool {
	a := &s[act.side]
	switch act.op {
	case sendsData:
		return !(w.oneWay && act.side == 1) && (a.ledger.MaySendData() || w.dataAnyTime) && w.dataSlot(a)
	case sendsRecords:
		return a.ledger.MaySendRecords() && (a.outstanding[recordSend] < int(w.records) || w.slotsByWord)
	case sendsCredit:
		return w.mayCredit(a)
	case pollsReceive:
		return a.inbox.n > 0
	case repostsReceives:
		return a.held > 0
	default:
		return a.outstanding[act.op-pollsDataSend] > 0
	}
}

func (w *linkRules) dataSlot(a *linkSide) bool {
	return w.sendQueue == 0 || a.outstanding[dataMessage] < w.sendQueue
}

func (w *linkRules) mayCredit(a *linkSide) bool {
	if a.outstanding[linkCredit] > 0 || w.creditNever {
		return false
	}
	return a.ledger.CreditDue() || w.creditEarly && a.ledger.received != a.ledger.told
}

func (w *linkRules) do(s *linkState, act linkAction) error {
	defer s.normalize()
	a := &s[act.side]
	switch act.op {
	case breaks:
		return w.resume(s)
	case sendsData:
		if w.dataAnyTime {
			a.ledger.sent.Data++
		} else {
			a.ledger.SendData()
		}
		w.enter(a, dataMessage)
		return w.post(s, act.side, linkMessage{kind: dataMessage})
	case sendsRecords:
		w.enter(a, recordSend)
		return w.post(s, act.side, linkMessage{recordSend, a.ledger.SendRecords()})
	case sendsCredit:
		return w.post(s, act.side, linkMessage{linkCredit, a.ledger.Acknowledge()})
	case pollsReceive:
		if err := w.inOrder(s, act.side); err != nil {
			return err
		}
		return w.poll(a)
	case repostsReceives:
		a.held = 0
	default:
		a.outstanding[act.op-pollsDataSend]--
	}
	return nil
}

// enter writes down what would have to be sent again.
func (w *linkRules) enter(a *linkSide, kind linkKind) {
	if w.breaks {
		a.log.push(kind)
	}
}

// strike takes out of the log what the peer has acknowledged since before.
func (a *linkSide) strike(before Totals) {
	for n := a.ledger.acked.minus(before).sum(); n > 0 && a.log.n > 0; n-- {
		a.log.pop()
	}
}

func (t Totals) minus(by Totals) Totals {
	t.subtract(by)
	return t
}

func (t Totals) sum() uint64 { return t.Data + t.Records }

// resume breaks the queue pair: what has been sent and not polled is lost, and each
// side sends again what its peer has not received. A side that has sent more records
// and fewer data than the other knows of cannot be: messages come in order.
func (w *linkRules) resume(s *linkState) error {
	for i := range s {
		s[i].inbox = queue[linkMessage]{}
		s[i].outstanding, s[i].held = [linkKinds]int{}, 0
	}
	received := [2]Totals{s[1].ledger.Received(), s[0].ledger.Received()}
	told := [2]Totals{s[0].ledger.told, s[1].ledger.told}
	for i := range s {
		l := &s[i].ledger
		before := *l
		if err := l.Resume(received[i]); err != nil {
			return err
		}
		if w.resumeDeaf {
			l.acked = before.acked
		}
		if w.resumeMute {
			l.told = before.told
		}
		if !w.replayAll {
			s[i].strike(before.acked)
		}
	}
	for i := range s {
		for _, kind := range s[i].log.all() {
			if w.replayNone {
				break
			}
			m := linkMessage{kind: kind}
			if kind == recordSend {
				m.acked = s[i].ledger.Acknowledge()
				if w.replayOld {
					m.acked = told[i]
				}
			}
			if err := w.post(s, i, m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *linkRules) post(s *linkState, from int, m linkMessage) error {
	a, peer := &s[from], &s[1-from]
	if w.sendQueue > 0 {
		a.outstanding[m.kind]++
		if n := a.outstanding[0] + a.outstanding[1] + a.outstanding[2]; n > w.sendQueue+int(w.records)+1 {
			return fmt.Errorf("%d work requests in a send queue of %d", n, w.sendQueue+int(w.records)+1)
		}
	}
	peer.inbox.push(m)
	taken := peer.inbox.n + peer.held
	if taken > w.data+w.control {
		return fmt.Errorf("a message finds no receive: %d are taken", taken-1)
	}
	w.need = max(w.need, taken)
	sends := 0
	for _, m := range peer.inbox.all() {
		if m.kind != dataMessage {
			sends++
		}
	}
	if sends > w.control {
		return fmt.Errorf("a SEND finds no slot in the mailbox: %d are taken", sends-1)
	}
	return nil
}

// inOrder says what is wrong with the next message to a side: it must be the one that
// its peer has sent behind those which the side has received.
func (w *linkRules) inOrder(s *linkState, to int) error {
	a, peer := &s[to], &s[1-to]
	m := a.inbox.all()[0]
	if !w.breaks || m.kind == linkCredit {
		return nil
	}
	next := int(a.ledger.received.minus(peer.ledger.acked).sum())
	if next >= peer.log.n || peer.log.at[next] != m.kind {
		return fmt.Errorf("%v comes as message %d of %v", m.kind, next, peer.log.all())
	}
	return nil
}

// poll takes a message: its receive is posted again, and then it is counted.
func (w *linkRules) poll(a *linkSide) error {
	m := a.inbox.pop()
	defer a.strike(a.ledger.acked)
	if w.repostLate {
		a.held++
	}
	return a.ledger.receive(m.kind, m.acked)
}

func (l *Link) receive(kind linkKind, acked Totals) error {
	switch kind {
	case dataMessage:
		return l.ReceiveData()
	case recordSend:
		return l.ReceiveRecords(acked)
	}
	return l.ReceiveCredit(acked)
}

func (w *linkRules) rest(s *linkState) error {
	for i := range s {
		if err := s[i].ledger.atRest(&s[1-i].ledger); err != nil {
			return fmt.Errorf("%c %w", 'A'+i, err)
		}
	}
	return nil
}

// atRest says what is wrong with the ledger of a side, and that of its peer, when
// neither engine can do anything.
func (l *Link) atRest(peer *Link) error {
	switch {
	case !l.MaySendData():
		return fmt.Errorf("may never send data again")
	case !l.MaySendRecords():
		return fmt.Errorf("may never send records again")
	case l.sent != peer.received:
		return fmt.Errorf("has sent %+v, and %+v came", l.sent, peer.received)
	case l.acked != peer.told:
		return fmt.Errorf("knows of %+v when its peer has told of %+v", l.acked, peer.told)
	case l.CreditDue():
		return fmt.Errorf("owes link credit and never sends it")
	}
	return nil
}
