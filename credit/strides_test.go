package credit

// stride takes a side several steps at once: it polls and reads only right
// before it sends something, and then only as much as that takes.
//
// This finds all that taking the steps one by one does. Polling and reading are
// seen by nobody before something is sent that could not have been sent without.
// Put off until then they leave what is sent and its order as it was, but hold
// receives and send slots for longer. And what the application hands over before
// it can be sent takes nothing but space.
type stride struct {
	*rules
	side  int
	found func(s *state, by []action, err error)

	polled, completed, sent state    // after polling the inbox; the send queue; and sending
	polls, completes, all   []action // that lead there
}

// from passes on every state that a stride of either side leads to, or what
// broke on the way. What is passed on is valid until the next is.
func (st *stride) from(s *state, found func(s *state, by []action, err error)) {
	st.found = found
	for st.side = range s {
		st.polled.copyFrom(s)
		st.polls = st.polls[:0]
		st.sends()
	}
}

// sends goes through all that the side may send, each after the fewest polls of
// the inbox that make it possible.
func (st *stride) sends() {
	a := &st.polled[st.side]
	if st.closes && !a.finWanted {
		st.send(action{op: closeWrite}, action{op: sendFin})
	}
	if a.resetWanted && !a.resetSent {
		st.send(action{op: sendReset})
	}
	if st.probes {
		st.sendWhen(func(a *side) bool { return !a.posted(keepalive) }, action{op: probe})
	}
	size, acked, closed := 0, a.finAckSent, a.closed
	for last := data; ; {
		if last == data {
			st.credits() // which say how many messages were polled
		}
		for (st.side == 0 || st.twoWay) && !a.finWanted && a.sender.MaySend() && size < a.sender.Space() {
			size++
			st.data(size)
		}
		if !acked && a.finAckWanted {
			acked = true
			st.send(action{op: sendFinAck})
		}
		if st.closes && !closed && a.unread() > 0 {
			closed = true
			st.send(action{op: closeAll})
		}
		if len(a.inbox) == 0 {
			return
		}
		last = a.inbox[0].kind
		poll := action{side: st.side, op: pollReceive}
		st.polls = append(st.polls, poll)
		if err := st.do(&st.polled, poll); err != nil {
			st.found(&st.polled, st.polls, err)
			return
		}
	}
}

// data sends n bytes. Whether they are signaled does not depend on completions.
func (st *stride) data(n int) {
	maySend := func(a *side) bool { return st.maySend(&a.slots) }
	st.sendWhen(maySend, action{op: write, n: n}, action{op: sendData, n: n})
	if st.freeSignals {
		st.sendWhen(maySend, action{op: write, n: n}, action{op: sendData, n: n, signaled: true})
	}
}

// credits sends CREDITs that differ by how much was read before.
func (st *stride) credits() {
	st.sendWhen(func(a *side) bool { return st.due(&a.receiver) }, action{op: sendCredit})
	for n := 1; n <= int(st.polled[st.side].unread()); n++ {
		st.sendWhen(func(a *side) bool {
			r := a.receiver
			r.Consume(r.consumed + uint64(n))
			return st.due(&r)
		}, action{op: read, n: n}, action{op: sendCredit})
	}
}

// send takes the last steps with no completion polled.
func (st *stride) send(last ...action) {
	st.sendWhen(func(*side) bool { return true }, last...)
}

// sendWhen takes the last steps after the fewest completions that make ok hold.
func (st *stride) sendWhen(ok func(a *side) bool, last ...action) {
	st.completed.copyFrom(&st.polled)
	st.completes = append(st.completes[:0], st.polls...)
	a := &st.completed[st.side]
	for !ok(a) {
		if a.nextSignaled() < 0 {
			return
		}
		poll := action{side: st.side, op: pollSend}
		st.completes = append(st.completes, poll)
		if err := st.do(&st.completed, poll); err != nil {
			st.found(&st.completed, st.completes, err)
			return
		}
	}
	st.finish(last)
}

func (st *stride) finish(last []action) {
	st.sent.copyFrom(&st.completed)
	st.all = append(st.all[:0], st.completes...)
	for _, act := range last {
		act.side = st.side
		st.all = append(st.all, act)
		if err := st.do(&st.sent, act); err != nil {
			st.found(&st.sent, st.all, err)
			return
		}
	}
	st.found(&st.sent, st.all, nil)
}

// drain polls all that there is to poll.
func (w *rules) drain(s *state) error {
	for i := range s {
		for len(s[i].inbox) > 0 {
			if err := w.do(s, action{side: i, op: pollReceive}); err != nil {
				return err
			}
		}
		for s[i].nextSignaled() >= 0 {
			if err := w.do(s, action{side: i, op: pollSend}); err != nil {
				return err
			}
		}
	}
	return nil
}
