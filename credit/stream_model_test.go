package credit

import (
	"errors"
	"fmt"
)

// A model of streams on a link: two sides, each with the ledgers of its streams
// as an engine uses them, stream numbers, ring memory and applications.
//
// Every message bears, hidden from the protocol, the identity of the stream that
// it is about, and every byte written to memory that of its stream and its
// position. So a message taken for one about another stream, a WRITE into memory
// that has another owner and a byte lost or overwritten are seen at once. A WRITE
// lands at any time between being posted and being polled for: its bytes count
// as being in the ring all that while.
//
// Below is the ledger of the link, or a network that takes so many messages.

const (
	streamEnds    = 6 // that a side knows of at once
	streamNumbers = 2
	ringPieces    = 5 // of ring memory at a side
	pieceBytes    = 4 // at most
)

// streamRecord is what one record of a SEND says.
type streamRecord struct {
	record     Record // NoRecord: GOAWAY
	number, id uint8
	place      uint8 // of the ring that it tells of
	value      uint8
}

func (r streamRecord) String() string {
	if r.record == NoRecord {
		return "GOAWAY"
	}
	return fmt.Sprintf("%v(%d){%d}", r.record, r.number, r.value)
}

type streamMessage struct {
	kind  linkKind
	acked Totals // of record SENDs and link credit

	number, id, place, at, bytes uint8 // of data
	newRing                      bool

	records [2]streamRecord // of record SENDs
	count   int
}

func (m *streamMessage) String() string {
	switch {
	case m.kind == linkCredit:
		return fmt.Sprintf("link credit %+v", m.acked)
	case m.kind == recordSend:
		return fmt.Sprint(m.records[:m.count])
	case m.newRing:
		return fmt.Sprintf("DATA(%d){%d at %d, to a new ring}", m.number, m.bytes, m.at)
	}
	return fmt.Sprintf("DATA(%d){%d at %d}", m.number, m.bytes, m.at)
}

func (m *streamMessage) opens() bool {
	for _, r := range m.records[:m.count] {
		if r.record == OpenRecord {
			return true
		}
	}
	return false
}

// streamEnd is what a side knows of one stream. Places are counted from 1.
type streamEnd struct {
	ledger             Stream
	id                 uint8 // 0: there is none
	number             uint8
	to, next           uint8 // the peer's places, written to and offered
	ring, old, offered uint8 // own places
	mayWrite, mayOffer uint8 // how often the application yet may
	closed             bool  // the application reads no more
}

func (e *streamEnd) unread() uint64 { return e.ledger.received - e.ledger.consumed }

// threshold is for how many bytes CREDIT is due.
func (e *streamEnd) threshold() uint64 { return max(e.ledger.ring/4, 1) }

type streamSide struct {
	link    Link
	numbers [streamNumbers]uint8 // which end each has, from 1
	ends    [streamEnds]streamEnd
	owner   [ringPieces]uint8 // the stream that has a place
	memory  [ringPieces][pieceBytes]uint8
	inbox   queue[streamMessage] // sent by the peer and not polled

	dials  uint8 // streams yet to be dialed
	lastID uint8 // of the last dialed

	goAwayDue, goAwaySent, goAwayHeard bool
	gone                               bool // it has disconnected
}

type streamState [2]streamSide

// mark is what the byte of a stream at a position is in memory.
func mark(id uint8, position uint64) uint8 { return id<<4 | uint8(position&7) }

// streamWorld is a world of streams, and the rules as an engine follows them,
// which a mutant changes.
type streamWorld struct {
	// The link: so many messages not polled, or a ledger.
	underWay                       int
	data, records, credit, control int

	batch   int    // records in a SEND at most
	numbers int    // streams that may be dialed at once
	pool    []int  // sizes of the pieces of ring memory at a side
	ring    int    // size of a stream's first ring
	offer   int    // size of rings offered, or 0 for any other than the present
	dials   int    // streams that A dials
	open    int    // streams open from the start
	writes  [2]int // bytes that an application writes to a stream
	offers  [2]int // rings that it offers

	endless  bool // applications write, offer rings and dial for ever
	closes   bool // applications close
	halves   bool // and close for writing
	aborts   bool // and drop what they have accepted
	patience bool // and reset what they have closed
	givesUp  bool // dials are given up
	refuses  bool // and refused
	goAway   bool

	need int // the most receives taken at once so far

	mutant streamMutant
}

// streamMutant is one change to the rules.
type streamMutant uint8

const (
	asItIs streamMutant = iota

	freesRingAtClose
	freesRingAtReset
	freesRingUnread
	freesRingBeforeSwitch
	freesOldRingAtSwitch
	freesOfferAtClose
	keepsOfferAtEnd

	freesNumberAfterEnds
	freesNumberBeforeFinAck
	freesNumberGivenUp
	wantsGivenUp

	creditsBehindFinAck
	creditsBehindReset
	creditsUnread
	offersBehindFinAck
	offersBehindReset
	offersTwice
	offersUndrained
	resetsBehindFinAck
	resetsNever
	finAcksTwice
	finsEarly

	writesToBothRings
	switchesToTooSmall
	switchesNotIdle
	switchesUnflagged

	opensBehindGoAway
	leavesAtGoAway
)

type streamOp uint8

const (
	// The application's doing.
	dialsStream streamOp = iota
	givesUp
	writes
	reads
	closesWrite
	closesStream
	resetsStream
	abortsStream
	offersRing
	wantsToGo
	// What an engine does sooner or later.
	sendsDataOf
	sendsRecordsOf
	sendsLinkCredit
	polls
	pollsAndRefuses
	disconnects
)

var streamOpNames = [...]string{"dials", "gives up", "writes", "reads", "closes for writing", "closes", "resets", "aborts",
	"offers a ring of", "wants to go", "sends data:", "sends a record", "sends link credit", "polls", "polls and refuses", "disconnects"}

// goAwayEnd stands for the end whose record GOAWAY is.
const goAwayEnd = streamEnds

type streamAction struct {
	side, end uint8
	op        streamOp
	n         uint8 // bytes, or the size of a ring
	two       bool  // records: the second is of the end then
	then      uint8
}

func (a streamAction) String() string {
	s := fmt.Sprintf("%c%d %s", 'A'+a.side, a.end, streamOpNames[a.op])
	if a.op == offersRing || a.op == sendsDataOf {
		s += fmt.Sprint(" ", a.n)
	}
	if a.two {
		s += fmt.Sprint(" and one of ", a.then)
	}
	return s
}

// story is what happened on the way of a trace.
func (w *streamWorld) story(trace []streamAction) (story []string) {
	s := w.start()
	for _, act := range trace {
		own, peers := &s[act.side].inbox, &s[1-act.side].inbox
		step, before := act.String(), peers.n
		if act.op == polls || act.op == pollsAndRefuses {
			step += " " + own.at[0].String()
		}
		_ = w.do(s, act) // the last breaks a promise
		if peers.n > before {
			step = fmt.Sprintf("%c sends %v", 'A'+act.side, &peers.at[before])
		}
		story = append(story, step)
	}
	return story
}

func (w *streamWorld) start() *streamState {
	s := new(streamState)
	for i := range s {
		a := &s[i]
		a.link = w.link()
		for k := range w.open {
			place := w.free(a, w.ring)
			id := uint8(k + 1)
			a.owner[place-1] = id
			a.numbers[k] = id
			a.ends[k] = streamEnd{
				ledger: Stream{stage: Open, outgoing: outgoing{peerRing: uint64(w.ring)}, incoming: incoming{ring: uint64(w.ring)}},
				id:     id, number: uint8(k), to: place, ring: place,
				mayWrite: uint8(w.writes[i]), mayOffer: uint8(w.offers[i]),
			}
		}
		a.lastID = uint8(w.open)
	}
	s[0].dials = uint8(w.dials)
	return s
}

func (w *streamWorld) link() Link {
	l := NewLink(w.data, w.data)
	l.recordWindow, l.recordCredit = uint64(w.records), uint64(w.credit)
	return l
}

// free is a place for a ring of that size, or 0.
func (w *streamWorld) free(a *streamSide, size int) uint8 {
	for i, n := range w.pool {
		if n == size && a.owner[i] == 0 {
			return uint8(i + 1)
		}
	}
	return 0
}

func (w *streamWorld) give(a *streamSide, place, id uint8) error {
	for _, b := range a.memory[place-1] {
		if b != 0 {
			return fmt.Errorf("place %d is given to stream %d while stream %d writes to it", place, id, b>>4)
		}
	}
	a.owner[place-1] = id
	return nil
}

func (a *streamSide) freeEnd() int {
	for k := range a.ends {
		if a.ends[k].id == 0 {
			return k
		}
	}
	panic("a side that knows of too many streams")
}

// freeID is an identity that no stream has which one of the sides knows of.
func (s *streamState) freeID() (id uint8, ok bool) {
	id = s[0].lastID
	for range 15 {
		id = id%15 + 1
		if s[0].other(id) == nil && s[1].other(id) == nil {
			return id, true
		}
	}
	return 0, false
}

func (a *streamSide) freeNumber(numbers int) (number uint8, ok bool) {
	for n, k := range a.numbers[:numbers] {
		if k == 0 {
			return uint8(n), true
		}
	}
	return 0, false
}

// end is the one that a message is about.
func (a *streamSide) end(number, id uint8) (int, error) {
	k := int(a.numbers[number]) - 1
	switch {
	case k < 0:
		return 0, fmt.Errorf("about stream %d, which there is not", number)
	case a.ends[k].id != id:
		return 0, fmt.Errorf("what is said of stream %d is taken for said of stream %d", id, a.ends[k].id)
	}
	return k, nil
}

// settle frees what the ledger says is free.
func (w *streamWorld) settle(a *streamSide, k int) {
	e := &a.ends[k]
	s := &e.ledger
	if w.mutant == freesNumberAfterEnds && s.stage == Open && s.endSent != 0 && s.endReceived != 0 {
		s.stage = Over
	}
	ring, old, offered, _ := s.Rings()
	release := func(free bool, place *uint8) {
		if free && *place != 0 {
			a.owner[*place-1] = 0
			*place = 0
		}
	}
	release(ring == 0 || w.freesRing(e), &e.ring)
	release(old == 0 || w.mutant == freesOldRingAtSwitch, &e.old)
	release(offered == 0 || w.mutant == freesOfferAtClose && e.closed && !s.offerDue, &e.offered)
	if s.nextRing == 0 {
		e.next = 0
	}
	early := w.mutant == freesNumberBeforeFinAck && s.endSent != 0 && s.endReceived != 0 && s.acked
	if (s.Stage() == Over || early) && int(a.numbers[e.number]) == k+1 {
		a.numbers[e.number] = 0
	}
	if s.Stage() == Over && e.ring == 0 {
		*e = streamEnd{}
	}
}

func (w *streamWorld) freesRing(e *streamEnd) bool {
	s := &e.ledger
	switch w.mutant {
	case freesRingAtClose:
		return e.closed
	case freesRingAtReset:
		return s.endSent&ResetEnd != 0
	case freesRingUnread:
		return s.endReceived != 0
	case freesRingBeforeSwitch:
		return s.offered != 0 && !s.offerDue && s.consumed == s.received
	}
	return false
}

func (w *streamWorld) choices(s *streamState, found func(act streamAction, progress bool)) {
	for i := range s {
		a, peer := &s[i], &s[1-i]
		if a.gone {
			continue
		}
		may := func(ok bool, op streamOp, end, n int) {
			if ok {
				found(streamAction{side: uint8(i), op: op, end: uint8(end), n: uint8(n)}, op >= sendsDataOf)
			}
		}
		may(a.inbox.n > 0, polls, 0, 0)
		may(a.inbox.n > 0 && w.refuses && a.inbox.at[0].opens(), pollsAndRefuses, 0, 0)
		if peer.gone {
			continue
		}
		_, ok := s.freeID()
		may(ok && w.mayDial(a), dialsStream, 0, 0)
		w.applications(a, i, may)
		if w.room(peer, a.link.MaySendData()) {
			for k := range a.ends {
				w.dataChoices(&a.ends[k], func(n int) { may(true, sendsDataOf, k, n) })
			}
		}
		if w.room(peer, a.link.MaySendRecords()) {
			w.recordChoices(a, i, found)
		}
		may(w.underWay == 0 && a.link.CreditDue(), sendsLinkCredit, 0, 0)
		may(w.mayDisconnect(a, i), disconnects, 0, 0)
	}
}

func (w *streamWorld) room(peer *streamSide, ledger bool) bool {
	if w.underWay > 0 {
		return peer.inbox.n < w.underWay
	}
	return ledger
}

func (w *streamWorld) mayDisconnect(a *streamSide, side int) bool {
	if w.mutant == leavesAtGoAway && side == 0 && a.goAwayHeard {
		return true
	}
	return a.goAwaySent && a.goAwayHeard && a.numbers == [streamNumbers]uint8{}
}

func (w *streamWorld) mayDial(a *streamSide) bool {
	going := a.goAwayDue || a.goAwaySent || a.goAwayHeard
	_, number := a.freeNumber(w.numbers)
	return a.dials > 0 && !going && number && w.free(a, w.ring) != 0
}

// applications passes on what they may do with the streams that there are.
func (w *streamWorld) applications(a *streamSide, side int, may func(ok bool, op streamOp, end, n int)) {
	may(w.goAway && !a.goAwayDue && !a.goAwaySent, wantsToGo, 0, 0)
	for k := range a.ends {
		e := &a.ends[k]
		s := &e.ledger
		if e.id == 0 {
			continue
		}
		dialing := s.stage == Dialing || s.stage == Opening
		may(w.givesUp && dialing && !e.closed || w.refuses && s.stage == Answering, givesUp, k, 0)
		may(e.unread() > 0 && !e.closed, reads, k, 0)
		may(w.closes && !e.closed && (s.stage == Open || s.stage == Over), closesStream, k, 0)
		if s.stage != Open {
			continue
		}
		may(e.mayWrite > 0 && !e.closed && w.space(s) > 0, writes, k, 0)
		may(w.halves && !e.closed && s.endWanted == 0, closesWrite, k, 0)
		reset := s.endWanted&ResetEnd == 0 && (s.endSent == 0 || s.endReceived == 0 || w.mutant == resetsBehindFinAck && !s.acked)
		may(w.patience && e.closed && s.endSent != 0 && reset, resetsStream, k, 0)
		may(w.aborts && reset, abortsStream, k, 0)
		if e.mayOffer > 0 && !e.closed && w.mayOffer(s) {
			w.offerChoices(a, e, func(size int) { may(true, offersRing, k, size) })
		}
	}
}

func (w *streamWorld) space(s *Stream) int {
	if w.mutant == writesToBothRings && s.endWanted == 0 {
		return int(s.credited + s.peerRing + s.peerBase - s.accepted)
	}
	return s.Space()
}

func (w *streamWorld) mayOffer(s *Stream) bool {
	open := s.stage == Open && s.endSent&ResetEnd == 0
	switch w.mutant {
	case offersBehindReset:
		return s.stage == Open && s.endSent&ResetEnd != 0 && s.offered == 0
	case offersBehindFinAck:
		return open && s.endReceived != 0 && s.ackSent && s.ring != 0
	case offersTwice:
		return open && s.endReceived == 0 && s.oldRing == 0 && !s.offerDue
	case offersUndrained:
		return open && s.endReceived == 0 && s.offered == 0
	}
	return s.MayOffer()
}

func (w *streamWorld) offerChoices(a *streamSide, e *streamEnd, found func(size int)) {
	for i, size := range w.pool {
		first := true
		for _, before := range w.pool[:i] {
			first = first && before != size
		}
		wanted := uint64(size) != e.ledger.ring && (w.offer == 0 || size == w.offer)
		if first && wanted && w.free(a, size) != 0 {
			found(size)
		}
	}
}

// dataChoices passes on how many bytes the next message may carry: one, or all.
func (w *streamWorld) dataChoices(e *streamEnd, found func(n int)) {
	n, newRing := w.next(&e.ledger)
	if n > 0 || newRing && w.mutant != switchesNotIdle {
		found(n)
	}
	if n > 1 {
		found(1)
	}
}

func (w *streamWorld) next(s *Stream) (n int, newRing bool) {
	if w.mutant == switchesToTooSmall && s.nextRing != 0 {
		all := s.accepted
		defer func() { s.accepted = all }()
		s.accepted = min(all, s.sent+s.nextRing)
	}
	return s.Next()
}

// recordChoices passes on which records may go in one SEND.
func (w *streamWorld) recordChoices(a *streamSide, side int, found func(act streamAction, progress bool)) {
	for k := range w.due(a) {
		act := streamAction{side: uint8(side), op: sendsRecordsOf, end: uint8(k)}
		found(act, true)
		if w.batch == 1 {
			continue
		}
		b := *a
		w.say(&b, k)
		for then := range w.due(&b) {
			act.two, act.then = true, uint8(then)
			found(act, true)
		}
	}
}

// due are the ends that have a record to send.
func (w *streamWorld) due(a *streamSide) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		dialing := false
		for k := range a.ends {
			e := &a.ends[k]
			dialing = dialing || e.id != 0 && e.ledger.stage == Dialing
			if e.id != 0 && w.dueOf(e) != NoRecord && !yield(k) {
				return
			}
		}
		if a.goAwayDue && !a.goAwaySent && (!dialing || w.mutant == opensBehindGoAway) {
			yield(goAwayEnd)
		}
	}
}

func (w *streamWorld) dueOf(e *streamEnd) Record {
	s := &e.ledger
	switch {
	case s.stage != Open:
	case w.mutant == creditsBehindFinAck && s.ackSent && s.ring != 0 && s.consumed-s.advertised >= e.threshold():
		return CreditRecord
	case w.mutant == creditsBehindReset && s.endReceived == 0 && s.endSent&ResetEnd != 0 && s.consumed-s.advertised >= e.threshold():
		return CreditRecord
	case w.mutant == creditsUnread:
		all := *s
		all.consumed = s.received
		return all.Due()
	case w.mutant == resetsBehindFinAck && s.endWanted&ResetEnd != 0 && s.endSent == FinEnd:
		return ResetRecord
	case w.mutant == finsEarly && s.endWanted == FinEnd && s.endSent == 0:
		return FinRecord
	}
	return s.Due()
}

// say makes the record that the end has to send.
func (w *streamWorld) say(a *streamSide, k int) streamRecord {
	if k == goAwayEnd {
		a.goAwaySent = true
		return streamRecord{}
	}
	e := &a.ends[k]
	s := &e.ledger
	r := streamRecord{record: w.dueOf(e), number: e.number, id: e.id}
	switch r.record {
	case OpenRecord, AcceptRecord:
		r.place = e.ring
	case RingRecord:
		r.place = e.offered
	}
	switch {
	case w.mutant == creditsUnread && r.record == CreditRecord:
		s.advertised = s.received
		r.value = uint8(s.advertised)
	case r.record == s.Due():
		r.value = uint8(s.SendRecord(r.record))
	default:
		r.value = uint8(s.sayUnasked(r.record))
	}
	w.settle(a, k)
	return r
}

// sayUnasked is for mutants.
func (s *Stream) sayUnasked(r Record) uint64 {
	switch r {
	case CreditRecord:
		s.advertised = s.consumed
		return s.advertised
	case FinRecord:
		s.endSent |= FinEnd
	case ResetRecord:
		s.endSent |= ResetEnd
	}
	return s.sent
}

func (w *streamWorld) do(s *streamState, act streamAction) error {
	a := &s[act.side]
	var err error
	switch act.op {
	case sendsDataOf:
		err = w.sendData(s, act)
	case sendsRecordsOf:
		m := streamMessage{kind: recordSend, count: 1}
		m.records[0] = w.say(a, int(act.end))
		if act.two {
			m.records[1] = w.say(a, int(act.then))
			m.count = 2
		}
		err = w.post(s, int(act.side), m)
	case sendsLinkCredit:
		err = w.post(s, int(act.side), streamMessage{kind: linkCredit})
	case polls, pollsAndRefuses:
		err = w.poll(a, act.op == pollsAndRefuses)
	case disconnects:
		a.gone = true
		err = a.forsaken()
	default:
		err = w.apply(s, act)
	}
	if err == nil {
		w.normalize(s)
	}
	return err
}

// forsaken says what a side that disconnects leaves undone.
func (a *streamSide) forsaken() error {
	for k := range a.ends {
		if e := &a.ends[k]; e.id != 0 && e.ledger.stage != Over {
			return fmt.Errorf("disconnects with stream %d %v", e.id, e.ledger.stage)
		}
	}
	for _, m := range a.inbox.all() {
		if m.kind != linkCredit {
			return fmt.Errorf("disconnects and has not heard %v", &m)
		}
	}
	return nil
}

// apply is what an application does.
func (w *streamWorld) apply(all *streamState, act streamAction) error {
	a := &all[act.side]
	switch act.op {
	case dialsStream:
		id, _ := all.freeID()
		return w.dial(a, id)
	case wantsToGo:
		a.goAwayDue = true
		return nil
	}
	k := int(act.end)
	e := &a.ends[k]
	s := &e.ledger
	var err error
	switch act.op {
	case givesUp:
		e.closed = true
		if w.mutant == freesNumberGivenUp && s.stage == Opening {
			s.over()
		}
		s.Reset()
	case writes:
		if s.accepted++; !w.endless {
			e.mayWrite--
		}
	case reads:
		err = w.read(a, e)
	case closesWrite:
		s.CloseWrite()
	case closesStream:
		if e.closed = true; w.discard(a, e) {
			s.Reset()
		} else {
			s.CloseWrite()
		}
	case resetsStream:
		s.Reset()
		if w.mutant == resetsBehindFinAck {
			s.endWanted |= ResetEnd
		}
	case abortsStream:
		e.closed = true
		w.discard(a, e)
		s.Drop()
		s.Reset()
	case offersRing:
		err = w.offerRing(a, e, int(act.n))
	}
	w.settle(a, k)
	return err
}

func (w *streamWorld) dial(a *streamSide, id uint8) error {
	number, _ := a.freeNumber(w.numbers)
	place := w.free(a, w.ring)
	k := a.freeEnd()
	if !w.endless {
		a.dials--
	}
	a.lastID = id
	a.numbers[number] = uint8(k + 1)
	a.ends[k] = streamEnd{
		ledger: NewStream(w.ring), id: id, number: number, ring: place,
		mayWrite: uint8(w.writes[0]), mayOffer: uint8(w.offers[0]),
	}
	return w.give(a, place, id)
}

func (w *streamWorld) offerRing(a *streamSide, e *streamEnd, size int) error {
	if w.mayOffer(&e.ledger) && !e.ledger.MayOffer() {
		e.ledger.offered, e.ledger.offerDue = uint64(size), true
	} else {
		e.ledger.Offer(size)
	}
	if !w.endless {
		e.mayOffer--
	}
	e.offered = w.free(a, size)
	return w.give(a, e.offered, e.id)
}

// byteAt is where the byte at a position is.
func (w *streamWorld) byteAt(a *streamSide, e *streamEnd, position uint64) (place uint8, b *uint8) {
	place = e.ring
	if position < e.ledger.base && e.old != 0 {
		place = e.old
	}
	if place == 0 {
		return 0, nil
	}
	return place, &a.memory[place-1][position%uint64(w.pool[place-1])]
}

func (w *streamWorld) read(a *streamSide, e *streamEnd) error {
	position := e.ledger.consumed
	place, b := w.byteAt(a, e, position)
	switch {
	case place == 0 || a.owner[place-1] != e.id:
		return fmt.Errorf("stream %d is read from memory that is not its own", e.id)
	case *b != mark(e.id, position):
		return fmt.Errorf("stream %d has something else at byte %d", e.id, position)
	}
	*b = 0
	e.ledger.Consume(position + 1)
	return nil
}

// discard drops what is unread and reports whether there was anything.
func (w *streamWorld) discard(a *streamSide, e *streamEnd) bool {
	had := e.unread() > 0
	for position := e.ledger.consumed; position < e.ledger.received; position++ {
		if _, b := w.byteAt(a, e, position); b != nil {
			*b = 0
		}
	}
	e.ledger.Consume(e.ledger.received)
	return had
}

func (w *streamWorld) sendData(s *streamState, act streamAction) error {
	e := &s[act.side].ends[act.end]
	m := streamMessage{kind: dataMessage, number: e.number, id: e.id, at: uint8(e.ledger.sent), bytes: act.n}
	if _, newRing := w.next(&e.ledger); newRing {
		e.to, e.next = e.next, 0
		m.newRing = w.mutant != switchesUnflagged
	}
	m.place = e.to
	from := e.ledger.sent
	all := e.ledger.accepted
	if w.mutant == switchesToTooSmall && e.ledger.nextRing != 0 {
		e.ledger.accepted = min(all, from+e.ledger.nextRing)
	}
	e.ledger.Send(int(act.n))
	e.ledger.accepted = all
	w.settle(&s[act.side], int(act.end))
	peer := &s[1-act.side]
	for position := from; position < e.ledger.sent; position++ {
		b := &peer.memory[m.place-1][position%uint64(w.pool[m.place-1])]
		switch owner := peer.owner[m.place-1]; {
		case owner != e.id:
			return fmt.Errorf("stream %d writes to place %d, which is %d's", e.id, m.place, owner)
		case *b != 0:
			return fmt.Errorf("stream %d overwrites a byte of stream %d", e.id, *b>>4)
		}
		*b = mark(e.id, position)
	}
	return w.post(s, int(act.side), m)
}

func (w *streamWorld) post(s *streamState, from int, m streamMessage) error {
	a, peer := &s[from], &s[1-from]
	if w.underWay == 0 {
		switch m.kind {
		case dataMessage:
			a.link.SendData()
		case recordSend:
			m.acked = a.link.SendRecords()
		default:
			m.acked = a.link.SendCredit()
		}
		if taken := peer.inbox.n; taken == w.data+w.control {
			return fmt.Errorf("a message finds no receive: %d are taken", taken)
		}
		w.need = max(w.need, peer.inbox.n+1)
	}
	peer.inbox.push(m)
	return nil
}

// poll takes a message, whose receive is posted again at once.
func (w *streamWorld) poll(a *streamSide, refuse bool) error {
	m := a.inbox.pop()
	if w.underWay == 0 {
		if err := a.link.receive(m.kind, m.acked); err != nil {
			return err
		}
	}
	if m.kind == dataMessage {
		if err := w.receiveData(a, &m); err != nil {
			return fmt.Errorf("%v: %w", &m, err)
		}
	}
	for _, r := range m.records[:m.count] {
		if err := w.receiveRecord(a, r, refuse); err != nil {
			return fmt.Errorf("%v: %w", r, err)
		}
	}
	return nil
}

func (w *streamWorld) receiveData(a *streamSide, m *streamMessage) error {
	k, err := a.end(m.number, m.id)
	if err != nil {
		return err
	}
	e := &a.ends[k]
	if err := e.ledger.Receive(int(m.bytes), m.newRing); err != nil {
		return err
	}
	if m.newRing {
		if e.old != 0 {
			return errors.New("a stream with three rings")
		}
		e.old, e.ring, e.offered = e.ring, e.offered, 0
	}
	if m.bytes > 0 && m.place != e.ring {
		return fmt.Errorf("data in place %d is looked for in place %d", m.place, e.ring)
	}
	if e.closed && w.discard(a, e) {
		e.ledger.Reset()
	}
	w.settle(a, k)
	return nil
}

func (w *streamWorld) receiveRecord(a *streamSide, r streamRecord, refuse bool) error {
	switch r.record {
	case NoRecord:
		a.goAwayHeard, a.goAwayDue = true, true
		return nil
	case OpenRecord:
		return w.receiveOpen(a, r, refuse)
	}
	k, err := a.end(r.number, r.id)
	if err != nil {
		return err
	}
	e := &a.ends[k]
	before := e.ledger
	if err := e.ledger.ReceiveRecord(r.record, uint64(r.value)); err != nil {
		return err
	}
	switch r.record {
	case AcceptRecord:
		if e.to = r.place; w.mutant == wantsGivenUp {
			e.ledger.endWanted = 0
		}
	case RingRecord:
		e.next = r.place
	case FinRecord, ResetRecord:
		w.changeEnd(&e.ledger, &before)
	}
	w.settle(a, k)
	return nil
}

// changeEnd is what mutants make of an end of the peer's.
func (w *streamWorld) changeEnd(s, before *Stream) {
	switch {
	case w.mutant == keepsOfferAtEnd:
		s.offered = before.offered
	case w.mutant == resetsNever:
		s.endWanted = before.endWanted
	case w.mutant == finAcksTwice && before.endReceived != 0:
		s.ackSent = false
	}
}

func (w *streamWorld) receiveOpen(a *streamSide, r streamRecord, refuse bool) error {
	if a.numbers[r.number] != 0 {
		return fmt.Errorf("stream %d is in use", r.number)
	}
	k := a.freeEnd()
	e := &a.ends[k]
	a.numbers[r.number] = uint8(k + 1)
	*e = streamEnd{id: r.id, number: r.number, to: r.place}
	place := w.free(a, w.ring)
	if place == 0 || refuse || a.goAwaySent {
		e.ledger = AcceptStream(w.ring, int(r.value))
		e.ledger.Reset()
		return nil
	}
	e.ledger, e.ring = AcceptStream(w.ring, int(r.value)), place
	e.mayWrite, e.mayOffer = uint8(w.writes[1]), uint8(w.offers[1])
	return w.give(a, place, r.id)
}

// other is the peer's end of a stream, if there still is one.
func (a *streamSide) other(id uint8) *streamEnd {
	for k := range a.ends {
		if a.ends[k].id == id {
			return &a.ends[k]
		}
	}
	return nil
}

func (w *streamWorld) rest(s *streamState) error {
	if s[0].gone || s[1].gone {
		return nil
	}
	for i := range s {
		a, peer := &s[i], &s[1-i]
		if w.underWay == 0 {
			if err := a.link.atRest(&peer.link); err != nil {
				return fmt.Errorf("%c %w", 'A'+i, err)
			}
		}
		owned := [ringPieces]uint8{}
		for k := range a.ends {
			e := &a.ends[k]
			if e.id == 0 {
				continue
			}
			for _, place := range []uint8{e.ring, e.old, e.offered} {
				if place != 0 {
					owned[place-1] = e.id
				}
			}
			if err := e.atRest(peer.other(e.id)); err != nil {
				return fmt.Errorf("stream %d, %c: %w", e.id, 'A'+i, err)
			}
		}
		if owned != a.owner {
			return fmt.Errorf("memory of %c is lost: %v has %v", 'A'+i, owned, a.owner)
		}
	}
	return nil
}

// atRest says what is wrong with an end, and that of the peer's, when nothing
// more can happen without an application.
func (e *streamEnd) atRest(other *streamEnd) error {
	s := &e.ledger
	switch {
	case s.stage == Over && e.unread() == 0:
		return errors.New("holds a ring for nobody")
	case s.stage == Over:
		return nil
	case s.stage != Open:
		return fmt.Errorf("remains %v", s.stage)
	case other == nil || other.ledger.stage != Open:
		return errors.New("is open and over for the peer")
	}
	o := &other.ledger
	room := s.Space() + int(other.unread())
	switch {
	case s.Pending() > 0:
		return errors.New("cannot send what was accepted")
	case o.received != s.sent:
		return fmt.Errorf("%d of %d bytes have arrived", o.received, s.sent)
	case s.peerRing != o.ring && s.endSent == 0:
		return fmt.Errorf("writes to a ring of %d that has %d", s.peerRing, o.ring)
	case s.nextRing != 0 || s.offered != 0:
		return errors.New("a ring is offered and not taken")
	case s.endWanted != 0 && s.endSent == 0, e.closed && s.endWanted == 0:
		return errors.New("does not say that it has ended")
	case s.endSent&ResetEnd != 0:
		return errors.New("has reset the stream, which is not over")
	case s.endSent != 0 && o.endSent != 0:
		return errors.New("is not over after both ends")
	case s.endSent != 0 && (o.endReceived == 0 || !s.acked):
		return errors.New("has ended, which was not heard or not answered")
	case s.endSent == 0 && !other.closed && room <= int(s.peerRing-other.threshold()):
		return fmt.Errorf("has room for %d with %d unread", s.Space(), other.unread())
	case s.endReceived != 0 && e.unread() == 0 && e.ring != 0, e.old != 0 && s.consumed >= s.base:
		return errors.New("holds a ring for nobody")
	}
	return nil
}

// normalize takes states for alike that differ in nothing but positions that no
// decision sees.
func (w *streamWorld) normalize(s *streamState) {
	for i := range s {
		a, peer := &s[i], &s[1-i]
		if w.underWay == 0 {
			by := a.link.rebase(&peer.link)
			for j := range a.inbox.all() {
				if m := &a.inbox.at[j]; m.kind != dataMessage {
					m.acked.subtract(by)
				}
			}
		}
		for k := range a.ends {
			if e := &a.ends[k]; e.ledger.stage == Open && e.ledger.credited >= 8 && w.endless {
				if other := peer.other(e.id); other != nil && other.ledger.stage == Open {
					e.rebase(other, a.inbox.all(), peer.inbox.all())
				}
			}
		}
	}
}

// rebase subtracts from all positions of what e sends, at both ends, 8 bytes
// that it knows to be consumed.
func (e *streamEnd) rebase(other *streamEnd, inbox, outbox []streamMessage) {
	const by = 8
	from, to := &e.ledger, &other.ledger
	for _, p := range []*uint64{&from.accepted, &from.sent, &from.credited, &to.received, &to.consumed, &to.advertised} {
		*p -= by
	}
	from.peerBase -= min(from.peerBase, by)
	to.base -= min(to.base, by)
	for i := range outbox {
		m := &outbox[i]
		if m.kind == dataMessage && m.id == e.id {
			m.at -= by
		}
		for j := range m.records[:m.count] {
			if r := &m.records[j]; r.id == e.id && (r.record == FinRecord || r.record == ResetRecord) {
				r.value -= by
			}
		}
	}
	for i := range inbox {
		for j := range inbox[i].records[:inbox[i].count] {
			if r := &inbox[i].records[j]; r.id == e.id && r.record == CreditRecord {
				r.value -= by
			}
		}
	}
}

func (w *streamWorld) code(s *streamState, c *codec) {
	if c.reading {
		*s = streamState{{link: w.link()}, {link: w.link()}}
	}
	for i := range s {
		w.codeSide(&s[i], c)
	}
}

func (w *streamWorld) codeSide(a *streamSide, c *codec) {
	if w.underWay == 0 {
		a.link.code(c)
	}
	flags(c, &a.goAwayDue, &a.goAwaySent, &a.goAwayHeard, &a.gone)
	number(c, &a.dials)
	number(c, &a.lastID)
	for i := range w.numbers {
		number(c, &a.numbers[i])
	}
	for i, size := range w.pool {
		number(c, &a.owner[i])
		for j := range size {
			number(c, &a.memory[i][j])
		}
	}
	for k := range a.ends {
		a.ends[k].code(c)
	}
	a.inbox.code(c, func(m *streamMessage) { m.code(c) })
}

func (e *streamEnd) code(c *codec) {
	number(c, &e.id)
	if e.id == 0 {
		return
	}
	for _, p := range []*uint8{&e.number, &e.to, &e.next, &e.ring, &e.old, &e.offered, &e.mayWrite, &e.mayOffer} {
		number(c, p)
	}
	s := &e.ledger
	flags(c, &e.closed, &s.acked, &s.offerDue, &s.ackSent)
	number(c, &s.stage)
	for _, p := range []*Ends{&s.endWanted, &s.endSent, &s.endReceived} {
		number(c, p)
	}
	for _, p := range []*uint64{
		&s.accepted, &s.sent, &s.credited, &s.peerRing, &s.nextRing, &s.peerBase,
		&s.received, &s.consumed, &s.advertised, &s.ring, &s.oldRing, &s.offered, &s.base,
	} {
		number(c, p)
	}
}

func (m *streamMessage) code(c *codec) {
	number(c, &m.kind)
	switch m.kind {
	case dataMessage:
		for _, p := range []*uint8{&m.number, &m.id, &m.place, &m.at, &m.bytes} {
			number(c, p)
		}
		flags(c, &m.newRing)
		return
	case recordSend:
		number(c, &m.count)
		for i := range m.records[:m.count] {
			r := &m.records[i]
			number(c, &r.record)
			for _, p := range []*uint8{&r.number, &r.id, &r.place, &r.value} {
				number(c, p)
			}
		}
	}
	m.acked.code(c)
}
