package credit

import (
	"fmt"
	"strings"
)

// A model of two sides of a connection, each with the ledger as a connection
// uses it, and of a network that delivers in order, whenever it likes.
//
// What has arrived at a side waits until that side polls for it, and holds a
// posted receive until then. What a side has posted takes a slot of its send
// queue until it polls the completion, which exists from the arrival on. The two
// are polled independently of each other. An application writes, reads, closes
// and stops doing so whenever it likes.

// kind is what a work request is for.
type kind uint8

const (
	data kind = iota
	creditMessage
	fin
	finAck
	reset
	keepalive // a write of no bytes, which takes no receive
)

var kindNames = [...]string{"data", "CREDIT", "FIN", "FINACK", "RESET", "keepalive"}

func (k kind) String() string { return kindNames[k] }

// message is what takes a receive at the peer.
type message struct {
	kind     kind
	bytes    uint64 // data: its length; CREDIT: consumed; FIN, RESET: total
	messages uint64 // CREDIT
}

// request is what takes a slot of the send queue.
type request struct {
	kind     kind
	signaled bool
}

// side is one side of the connection.
type side struct {
	sender   Sender
	receiver Receiver
	slots    Slots

	sendQueue []request // posted and not completed, as far as this side knows
	flying    int       // the last of sendQueue, which have not arrived yet
	inbox     []message // sent by the peer and not polled; some may be flying
	held      int       // receives polled and not posted again

	said message // the last CREDIT sent

	closed                   bool // reads no more, discards
	finWanted, finSent       bool // finWanted: writes no more
	resetWanted, resetSent   bool
	finAckWanted, finAckSent bool // finAckWanted: the peer has said FIN
	finAcked                 bool
	ended                    bool // the peer has said FIN or RESET
}

func (a *side) unread() uint64 { return a.receiver.received - a.receiver.consumed }

// state is the connection as a whole. The receives that the peer's flying
// messages will take are not taken yet.
type state [2]side

// arrived is how many messages in the inbox of side i have arrived.
func (s *state) arrived(i int) int {
	n := len(s[i].inbox)
	peer := &s[1-i]
	for _, q := range peer.sendQueue[len(peer.sendQueue)-peer.flying:] {
		if q.kind != keepalive {
			n--
		}
	}
	return n
}

// copyFrom makes s a copy of t that shares nothing with it.
func (s *state) copyFrom(t *state) {
	for i := range s {
		q, in := append(s[i].sendQueue[:0], t[i].sendQueue...), append(s[i].inbox[:0], t[i].inbox...)
		s[i] = t[i]
		s[i].sendQueue, s[i].inbox = q, in
	}
}

// op is something that happens at a side.
type op uint8

const (
	// The application's doing.
	write op = iota
	read
	closeWrite
	closeAll
	probe
	// Progress: what goes on whatever the application does.
	sendData
	sendCredit
	sendFin
	sendFinAck
	sendReset
	arrive
	pollReceive
	pollSend
	repost
	ops
)

var opNames = [...]string{"write", "read", "CloseWrite", "Close", "probe", "send data", "send CREDIT",
	"send FIN", "send FINACK", "send RESET", "arrive", "poll receive", "poll send", "repost"}

// action is an op at a side. In a choice offered, n is the largest possible.
type action struct {
	side     int
	op       op
	n        int  // bytes to write, read, send
	signaled bool // of sendData, though it need not be
}

func (a action) String() string {
	s := fmt.Sprintf("%c: %s", 'A'+a.side, opNames[a.op])
	if a.op == write || a.op == read || a.op == sendData {
		s += fmt.Sprintf(" %d", a.n)
	}
	if a.signaled {
		s += " signaled"
	}
	return s
}

// rules are the scheme, which a mutant changes, and the world that it is put in.
type rules struct {
	ring, receives [2]int // of each side
	depth          int    // of a send queue

	// The scheme, as a connection uses it.
	parts      int // a CREDIT is due for one part in so many
	reserve    int // receives posted for control messages
	due        func(*Receiver) bool
	maySend    func(*Slots) bool
	advertise  func(*Receiver) (uint64, uint64)
	signal     func(w *rules, q *Slots) bool
	lateRepost bool // counts a message before its receive is posted again
	earlySlots bool // takes a CREDIT for the completion of what it answers
	earlyFin   bool // sends FIN before the last bytes

	// The world.
	twoWay      bool // B writes too
	closes      bool // applications close
	probes      bool // keepalives are sent
	flight      bool // what is posted takes time to arrive; else it is there at once
	freeSignals bool // data may be signaled when it need not be

	eager   bool // completions are polled at once
	reduced bool // explore only what a stride finds
}

// scheme is the real one, in a world where only A writes.
func scheme(ring, receives, depth int) rules {
	return rules{
		ring: [2]int{ring, ring}, receives: [2]int{receives, receives}, depth: depth,
		parts:     4,
		reserve:   ControlReceives,
		due:       (*Receiver).Due,
		maySend:   (*Slots).MaySend,
		advertise: (*Receiver).Advertise,
		signal:    everyQuarter,
	}
}

// halves is the scheme with halves for quarters, and so with 4 CREDITs under way
// for 8. It is as rich as the real one and has few enough states to explore
// everything at once: a ring of 2 bytes and 2 receives in place of 4 and 4.
func halves(depth int) rules {
	w := scheme(2, 2, depth)
	w.parts = 2
	w.reserve = ControlReceives - 8 + 4
	w.due = func(r *Receiver) bool {
		return !r.outstanding &&
			(r.consumed-r.advertised >= r.ring/2 || r.messages-r.advertisedMessages >= r.receives/2)
	}
	return w
}

// everyQuarter of the send queue has to have one signaled request.
func everyQuarter(w *rules, q *Slots) bool { return q.Unsignaled()+1 >= w.depth/4 }

// start is a connection just set up.
func (w *rules) start() *state {
	s := new(state)
	for i := range s {
		s[i].sender = NewSender(w.ring[1-i], w.receives[1-i])
		s[i].receiver = NewReceiver(w.ring[i], w.receives[i])
		s[i].slots = NewSlots(w.depth)
	}
	return s
}

// choices appends what can happen next to out.
func (w *rules) choices(s *state, out []action) []action {
	for i := range s {
		a := &s[i]
		add := func(ok bool, o op, n int) {
			if ok {
				out = append(out, action{side: i, op: o, n: n})
			}
		}
		pending := a.sender.Pending()
		maySend := a.sender.MaySend() && w.maySend(&a.slots)
		ended := a.finSent || a.resetSent
		mayEnd := !a.finSent && !a.resetSent && (pending == 0 || w.earlyFin)

		add((i == 0 || w.twoWay) && !a.finWanted && a.sender.Space() > 0, write, a.sender.Space())
		add(!a.closed && a.unread() > 0, read, int(a.unread()))
		add(w.closes && !a.finWanted, closeWrite, 0)
		add(w.closes && !a.closed, closeAll, 0)
		add(w.probes && !a.posted(keepalive), probe, 0)

		add(pending > 0 && maySend && !ended, sendData, pending)
		if w.freeSignals && pending > 0 && maySend && !ended {
			out = append(out, action{side: i, op: sendData, n: pending, signaled: true})
		}
		add(w.due(&a.receiver), sendCredit, 0)
		add(a.finWanted && !a.resetWanted && mayEnd, sendFin, 0)
		add(a.finAckWanted && !a.finAckSent, sendFinAck, 0)
		add(a.resetWanted && !a.resetSent && pending == 0, sendReset, 0)
		add(a.flying > 0, arrive, 0)
		add(s.arrived(i) > 0, pollReceive, 0)
		add(a.nextSignaled() >= 0, pollSend, 0)
		add(a.held > 0, repost, 0)
	}
	return out
}

func (a *side) posted(k kind) bool {
	for _, q := range a.sendQueue {
		if q.kind == k {
			return true
		}
	}
	return false
}

// nextSignaled is the first request in the send queue whose completion can be
// polled, or -1.
func (a *side) nextSignaled() int {
	for n, q := range a.sendQueue[:len(a.sendQueue)-a.flying] {
		if q.signaled {
			return n
		}
	}
	return -1
}

// do makes act happen. An error says which of the scheme's promises is broken.
func (w *rules) do(s *state, act action) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	a := &s[act.side]
	switch act.op {
	case write:
		a.sender.Accept(act.n)
	case read:
		a.receiver.Consume(a.receiver.consumed + uint64(act.n))
	case closeWrite:
		a.finWanted = true
	case closeAll:
		a.closed, a.finWanted, a.resetWanted = true, true, a.unread() > 0
		a.receiver.Consume(a.receiver.Received())
	case probe:
		return w.post(s, act.side, request{keepalive, true}, message{})
	case sendData:
		return w.sendData(s, act)
	case sendCredit:
		return w.sendCredit(s, act.side)
	case sendFin:
		a.finSent = true
		return w.post(s, act.side, request{fin, true}, message{kind: fin, bytes: a.sender.Accepted()})
	case sendReset:
		a.resetSent = true
		return w.post(s, act.side, request{reset, true}, message{kind: reset, bytes: a.sender.Accepted()})
	case sendFinAck:
		a.finAckSent = true
		return w.post(s, act.side, request{finAck, true}, message{kind: finAck})
	case arrive:
		k := a.sendQueue[len(a.sendQueue)-a.flying].kind
		a.flying--
		if k != keepalive {
			return w.takeReceive(s, 1-act.side)
		}
	case pollReceive:
		return w.pollReceive(a)
	case pollSend:
		w.complete(a, a.nextSignaled()+1)
	case repost:
		a.held--
	}
	return nil
}

func (w *rules) sendData(s *state, act action) error {
	a := &s[act.side]
	a.sender.Send(act.n)
	signaled := act.signaled || w.signal(w, &a.slots)
	return w.post(s, act.side, request{data, signaled}, message{kind: data, bytes: uint64(act.n)})
}

func (w *rules) sendCredit(s *state, i int) error {
	a := &s[i]
	said := message{kind: creditMessage}
	said.bytes, said.messages = w.advertise(&a.receiver)
	bytes, messages := int(said.bytes-a.said.bytes), int(said.messages-a.said.messages)
	if w.parts*(bytes*w.receives[i]+messages*w.ring[i]) < w.ring[i]*w.receives[i] {
		return fmt.Errorf("CREDIT for %d bytes and %d messages", bytes, messages)
	}
	a.said = said
	return w.post(s, i, request{creditMessage, true}, said)
}

func (w *rules) post(s *state, i int, q request, m message) error {
	a, peer := &s[i], &s[1-i]
	a.slots.Post()
	if q.signaled {
		a.slots.Signal()
	}
	a.sendQueue = append(a.sendQueue, q)
	if len(a.sendQueue) > w.depth {
		return fmt.Errorf("%d work requests in a send queue of %d", len(a.sendQueue), w.depth)
	}
	if q.kind != keepalive {
		peer.inbox = append(peer.inbox, m)
	}
	if w.eager {
		w.complete(a, 1)
	}
	if w.flight {
		a.flying++
		return nil
	}
	if q.kind != keepalive {
		return w.takeReceive(s, 1-i)
	}
	return nil
}

// need is how many receives beyond those for data are taken at side i.
func (w *rules) need(s *state, i int) int { return s.arrived(i) + s[i].held - w.receives[i] }

// takeReceive is the arrival of a message at side i.
func (w *rules) takeReceive(s *state, i int) error {
	if w.need(s, i) > w.reserve {
		return fmt.Errorf("receiver not ready: %d receives are taken", s.arrived(i)+s[i].held-1)
	}
	if sent, consumed := s[1-i].sender.sent, s[i].receiver.consumed; sent-consumed > uint64(w.ring[i]) {
		return fmt.Errorf("%d bytes in a ring of %d", sent-consumed, w.ring[i])
	}
	return nil
}

func (w *rules) pollReceive(a *side) error {
	m := a.inbox[0]
	a.inbox = append(a.inbox[:0], a.inbox[1:]...)
	if w.lateRepost {
		a.held++
	}
	switch m.kind {
	case data:
		if a.ended {
			return fmt.Errorf("data behind the end")
		}
		if err := a.receiver.Receive(int(m.bytes)); err != nil {
			return err
		}
		if a.closed {
			a.receiver.Consume(a.receiver.Received())
		}
	case creditMessage:
		if w.earlySlots {
			a.slots.completed = a.slots.posted
		}
		return a.sender.Credit(m.bytes, m.messages)
	case fin, reset:
		if m.bytes != a.receiver.Received() {
			return fmt.Errorf("%v after %d bytes, at byte %d", m.kind, m.bytes, a.receiver.Received())
		}
		a.ended = true
		a.finAckWanted = a.finAckWanted || m.kind == fin
	case finAck:
		if !a.finSent {
			return fmt.Errorf("FINACK without FIN")
		}
		a.finAcked = true
	}
	return nil
}

// complete is a completion of the n-th request in the send queue of a.
func (w *rules) complete(a *side, n int) {
	if left := len(a.sendQueue) - n; a.slots.Outstanding() > left {
		a.slots.Complete(a.slots.posted - uint64(left) - 1)
	}
	for _, q := range a.sendQueue[:n] {
		if q.kind == creditMessage {
			a.receiver.Completed()
		}
	}
	a.sendQueue = append(a.sendQueue[:0], a.sendQueue[n:]...)
}

// atRest says what is missing when nothing goes on any more unless an
// application does something: all that was accepted has to be at the peer, all
// control messages too, and only a reader may keep a writer waiting.
func (w *rules) atRest(s *state) error {
	for i := range s {
		a, peer, ring := &s[i], &s[1-i], w.ring[1-i]
		switch {
		case a.sender.Pending() > 0:
			return fmt.Errorf("%c cannot send %d bytes accepted", 'A'+i, a.sender.Pending())
		case peer.receiver.Received() != a.sender.Accepted():
			return fmt.Errorf("%d of %d bytes received", peer.receiver.Received(), a.sender.Accepted())
		case !a.sender.MaySend():
			return fmt.Errorf("%c waits for receives", 'A'+i)
		case !w.maySend(&a.slots) || a.slots.Outstanding() > a.slots.Unsignaled():
			return fmt.Errorf("%c waits for a completion", 'A'+i)
		case a.sender.Space()+int(peer.unread()) <= ring-ring/w.parts:
			return fmt.Errorf("%c has space for %d bytes, with %d unread", 'A'+i, a.sender.Space(), peer.unread())
		case a.finWanted && !(a.finSent || a.resetSent) || a.resetWanted && !a.resetSent:
			return fmt.Errorf("%c did not say that its stream ends", 'A'+i)
		case (a.finSent || a.resetSent) != peer.ended || a.finSent != a.finAcked:
			return fmt.Errorf("%c said that its stream ends and was not heard or not answered", 'A'+i)
		}
	}
	return nil
}

// work bounds how much can still happen without new bytes from an application:
// each progress and each read leaves less. So nothing goes on for ever, and
// every run ends at rest.
func (w *rules) work(s *state) int {
	const (
		message = 4           // to arrive, be polled, have its receive posted again, be completed
		control = 1 + message // and before that be sent
		unread  = 1 + control // to be read, and then perhaps a CREDIT
		pending = 1 + message + control + unread
	)
	n := 0
	for i := range s {
		a := &s[i]
		n += a.sender.Pending()*pending + len(a.sendQueue) + a.flying
		n += int(a.unread())*unread + a.held
		n += int(a.receiver.consumed-a.said.bytes+a.receiver.messages-a.said.messages) * control
		for _, m := range a.inbox {
			n += 2
			if m.kind == data {
				n += int(m.bytes)*unread + control
			}
		}
		for _, sent := range []bool{a.finSent, a.resetSent, a.finAckSent} {
			if !sent {
				n += control
			}
		}
	}
	return n
}

// normalize moves the counts of each direction down by what the sender knows to
// be dealt with. No decision depends on more than differences.
func (s *state) normalize() {
	for i := range s {
		a, peer := &s[i], &s[1-i]
		bytes, messages := min(a.sender.consumed, peer.receiver.consumed), a.sender.reposted
		for _, p := range []*uint64{&a.sender.accepted, &a.sender.sent, &a.sender.consumed,
			&peer.receiver.received, &peer.receiver.consumed, &peer.receiver.advertised, &peer.said.bytes} {
			*p -= bytes
		}
		for _, p := range []*uint64{&a.sender.messages, &a.sender.reposted,
			&peer.receiver.messages, &peer.receiver.advertisedMessages, &peer.said.messages} {
			*p -= messages
		}
		for k := range a.inbox {
			if m := &a.inbox[k]; m.kind == creditMessage {
				m.bytes -= bytes
				m.messages -= messages
			}
		}
		for k := range peer.inbox {
			if m := &peer.inbox[k]; m.kind == fin || m.kind == reset {
				m.bytes -= bytes
			}
		}
		a.slots.signaled -= min(a.slots.signaled, a.slots.completed)
		a.slots.posted -= a.slots.completed
		a.slots.completed = 0
	}
}

func trace(acts []action) string {
	var b strings.Builder
	for _, a := range acts {
		fmt.Fprintf(&b, "\n  %v", a)
	}
	return b.String()
}
