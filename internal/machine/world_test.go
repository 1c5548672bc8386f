package machine

import (
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// world is two ends of a link, and a model of what drives and connects them: devices that complete what they are
// given when it is their turn, queue pairs that are lost, and applications that follow scripts. A step is one event
// of any of these. Nothing happens between steps.
type world struct {
	ends   [2]*end
	now    time.Time
	losses int // of queue pairs that may come yet
	grows  bool
	pool   pool
}

// end is one end, with its device and its application.
type end struct {
	w       *world
	index   int
	m       *Link
	streams []*talk // in the order in which they were begun
	offered []*talk // that the peer has begun

	memories []*memory
	epoch    int  // of the queue pair that it has
	broken   bool // it carries nothing any more
	noticed  bool // by this end
	flushed  bool // it is disconnected

	posted   int                  // receives
	sent     []fabric.WorkRequest // on the wire
	complete []fabric.Completion  // to be polled
	others   Exchange             // what the peer has told for the next queue pair; of no use before exchanged
	told     bool
}

// talk is one end of a stream, and how far its application is.
type talk struct {
	s       *Stream
	id      int // of the stream, at both ends
	script  []op
	written int
	read    int
	ended   bool // read to its end
	closing *Closing
	closed  bool
	loss    error
}

// op is what an application does next on a stream.
type op struct {
	kind opKind
	n    int // bytes to write
}

type opKind uint8

const (
	write opKind = iota
	read         // all that there is, when there is something
	closeWrite
	closeNow    // not lingering
	closeLinger // and it waits for the delivery
)

// memory is registered memory, of which a queue pair has another key than the one before.
type memory struct {
	e     *end
	bytes []byte
	addr  uint64
}

func (m *memory) Bytes() []byte { return m.bytes }
func (m *memory) Addr() uint64  { return m.addr }
func (m *memory) RKey() uint32  { return m.key(m.e.epoch) }
func (m *memory) Free() bool    { return true }
func (m *memory) Keep()         {}

func (m *memory) key(epoch int) uint32 { return uint32(m.addr>>20)<<8 | uint32(epoch+1) }

func (e *end) register(n int) *memory {
	m := &memory{e: e, bytes: e.w.memory(n), addr: uint64(1+len(e.memories)+100*e.index) << 20}
	e.memories = append(e.memories, m)
	return m
}

// pool is memory that worlds have had before, by size: to make it takes longer than all else.
type pool map[int][][]byte

func (w *world) memory(n int) []byte {
	free := w.pool[n]
	if len(free) == 0 {
		return make([]byte, n)
	}
	w.pool[n] = free[:len(free)-1]
	return free[len(free)-1]
}

// end gives the world's memory back.
func (w *world) end() {
	for _, e := range w.ends {
		for _, m := range e.memories {
			w.pool[len(m.bytes)] = append(w.pool[len(m.bytes)], m.bytes)
		}
	}
}

const worldRing = wire.MinRing

// newWorld is a link with its first stream.
func newWorld(p pool, losses int, grows bool, scripts [2][]op) *world {
	w := &world{pool: p, now: time.Unix(1000, 0), losses: losses, grows: grows}
	cfg := Config{
		RecvBuffer: worldRing, SendBuffer: 4 * worldRing, FirstStaging: 2 * worldRing, SendQueue: 16, RecvQueue: wire.MinReceives, Inline: 64,
		LinkIdle: time.Hour, ResumeTimeout: 30 * time.Second, ProbeTimeout: time.Hour,
		Reaches: func(wire.RingPlace) bool { return true },
	}
	if grows {
		cfg.RecvBuffer = 4 * FirstRing
	}
	for i := range w.ends {
		e := &end{w: w, index: i}
		w.ends[i] = e
		e.m = New(cfg, e.register(cfg.FirstStaging+ControlMemory), func() time.Time { return w.now })
		e.m.Rings().Add(e.register(cfg.FirstRing()), cfg.FirstRing(), true)
		e.posted = cfg.RecvQueue + credit.LinkControlReceives
		e.m.OutlivesQueuePairs(false)
	}
	a, b := w.ends[0], w.ends[1]
	a.m.Dials()
	heldA, _ := a.m.TakeRing()
	heldB, _ := b.m.TakeRing()
	first := a.m.First(heldA)
	hello := wire.Hello{Receives: cfg.RecvQueue}
	b.m.Hear(hello, a.m.Held(heldA))
	accepted := b.m.AcceptFirst(heldB, a.m.Held(heldA))
	a.m.Hear(hello, b.m.Held(heldB))
	r := wire.Record{Type: credit.AcceptRecord, Ring: b.m.Held(heldB)}
	if err := first.FirstAnswered(&r); err != nil {
		panic(err)
	}
	a.streams = append(a.streams, &talk{s: first, script: scripts[0]})
	b.streams = append(b.streams, &talk{s: accepted, script: scripts[1]})
	for _, e := range w.ends {
		e.m.Start()
		e.carryOut()
	}
	return w
}

// dial begins another stream, with such scripts.
func (w *world) dial(scripts [2][]op) {
	a, b := w.ends[0], w.ends[1]
	id := len(a.streams)
	held := a.ring()
	s := a.m.Open(held, uint16(id))
	a.streams = append(a.streams, &talk{s: s, id: id, script: scripts[0]})
	b.offered = append(b.offered, &talk{id: id, script: scripts[1]})
	a.carryOut()
}

// carryOut is what a driver does, as package link does it.
func (e *end) carryOut() {
	m := e.m
	for {
		e.postReceives()
		for _, s := range m.Touched {
			s.Untouched()
		}
		m.Touched = m.Touched[:0]
		for _, s := range m.Offered {
			e.accept(s)
		}
		m.Offered = nil
		growing := m.Growing
		m.Growing = nil
		for _, s := range growing {
			for lacks := s.Grow(nil); lacks > 0; lacks = s.Grow(nil) {
				m.Rings().Add(e.register(lacks), lacks, false)
			}
		}
		if m.StagingFull {
			m.StagingFull = false
			m.GrowStaging(e.register(m.StagingGrows()), m.StagingGrows())
		}
		for m.Trim {
			memory, _ := m.TakeStaging()
			m.Trim = memory != nil
		}
		m.Forgotten, m.Returned, m.Answered, m.More = nil, nil, 0, false
		if m.TakeDisconnect() {
			e.disconnect()
			m.Disconnected(nil)
		}
		has := m.HasBatch()
		e.postReceives()
		if has {
			e.post()
			continue
		}
		if !m.Advance() && m.Receives == 0 && len(m.Touched) == 0 && !m.More {
			break
		}
	}
	m.Called, m.Watched, m.Served = false, false, false
	if what := m.Amiss(); what != "" {
		panic(fmt.Sprintf("end %d: %s: %v", e.index, what, m))
	}
}

func (e *end) postReceives() { e.posted += e.m.TakeReceives() }

func (e *end) post() {
	batch, _ := e.m.Batch()
	for _, wr := range batch {
		data := make([]byte, wr.Len())
		wr.CopyTo(data)
		wr.Data, wr.Rest = data, nil
		if !e.flushed {
			e.sent = append(e.sent, wr)
		} else if wr.Signaled {
			e.complete = append(e.complete, fabric.Completion{ID: wr.ID, Status: fabric.Flushed})
		}
	}
	e.m.Posted(nil)
}

// ring is memory for a ring.
func (e *end) ring() (held ringPiece) {
	for {
		held, lacks := e.m.TakeRing()
		if lacks == 0 {
			return held
		}
		e.m.Rings().Add(e.register(lacks), lacks, false)
	}
}

func (e *end) accept(s *Stream) {
	t := e.offered[0]
	e.offered = e.offered[1:]
	t.s = s
	e.streams = append(e.streams, t)
	s.Accept(e.ring())
}

// disconnect has the device give back what is posted.
func (e *end) disconnect() {
	e.flushed = true
	for _, wr := range e.sent {
		e.complete = append(e.complete, fabric.Completion{ID: wr.ID, Status: fabric.Flushed})
	}
	e.sent = nil
	for ; e.posted > 0; e.posted-- {
		e.complete = append(e.complete, fabric.Completion{Recv: true, Status: fabric.Flushed})
	}
}

func (e *end) peer() *end { return e.w.ends[1-e.index] }

// step is something that may happen next.
type step struct {
	what stepKind
	end  int
	talk int // of the application
}

type stepKind uint8

const (
	deliver stepKind = iota // the oldest message of an end arrives at the other
	poll
	act    // the application does what its script says
	giveUp // a Write that waits for staging memory has waited long enough
	finish // a Close that lingered is over
	lose   // the queue pair is lost, and with it, at the ends of talk, that messages have arrived
	notice // by an end
	adopt  // an end goes on over the next
	tick   // the next alarm is due
)

func (s step) String() string {
	return fmt.Sprintf("%s %d/%d", [...]string{"deliver", "poll", "act", "give up", "finish", "lose", "notice", "adopt", "tick"}[s.what], s.end, s.talk)
}

// steps are what may happen next, but for alarms.
func (w *world) steps(steps []step) []step {
	for i, e := range w.ends {
		if len(e.sent) > 0 && !e.broken && !e.flushed && e.peer().epoch == e.epoch && !e.peer().flushed {
			steps = append(steps, step{deliver, i, 0})
		}
		if len(e.complete) > 0 {
			steps = append(steps, step{poll, i, 0})
		}
		if e.broken && !e.noticed {
			steps = append(steps, step{notice, i, 0})
		}
		if e.m.Stage() == Seeking && e.peer().epoch >= e.epoch && (e.peer().epoch > e.epoch || e.peer().m.Stage() == Seeking) {
			steps = append(steps, step{adopt, i, 0})
		}
		for j, t := range e.streams {
			switch {
			case t.closing != nil && !t.closed && t.s.CloseReady():
				steps = append(steps, step{finish, i, j})
			case len(t.script) > 0 && t.closing == nil && e.ready(t):
				steps = append(steps, step{act, i, j})
			}
			if t.s.line == inLine && t.closing == nil {
				steps = append(steps, step{giveUp, i, j})
			}
		}
	}
	if w.losses > 0 && w.ends[0].epoch == w.ends[1].epoch && !w.ends[0].broken && w.ends[0].m.Stage() == Up && w.ends[1].m.Stage() == Up {
		steps = append(steps, step{lose, 0, 0})
		for i, e := range w.ends {
			if slices.ContainsFunc(e.complete, func(c fabric.Completion) bool { return !c.Recv }) {
				steps = append(steps, step{lose, 0, 1 << i})
			}
		}
	}
	return steps
}

// ready reports whether the call that comes next would not wait.
func (e *end) ready(t *talk) bool {
	switch t.script[0].kind {
	case write:
		if t.s.NeedsRoom() && len(e.complete) > 0 {
			return false // it polls first, which is a step
		}
		return e.m.cause == nil && t.s.OpenReady() && t.s.WriteReady() || t.s.writeError() != nil
	case read:
		p, err := t.s.Piece(1)
		return len(p) > 0 || err != nil
	}
	return t.s.OpenReady()
}

// do has a step happen.
func (w *world) do(s step) {
	e := w.ends[s.end]
	e.m.Begin()
	switch s.what {
	case deliver:
		wr := e.sent[0]
		e.sent = e.sent[1:]
		e.peer().arrive(&wr)
		if wr.Signaled {
			e.complete = append(e.complete, fabric.Completion{ID: wr.ID, Status: fabric.OK})
		}
		return
	case poll:
		for len(e.complete) > 0 {
			n := min(len(e.complete), MaxBatch)
			batch := e.complete[:n]
			e.complete = e.complete[n:]
			e.m.Completed(batch)
		}
		e.m.Emptied()
	case act:
		e.act(e.streams[s.talk])
	case giveUp:
		t := e.streams[s.talk]
		t.s.QuitStagingLine()
		t.script = t.script[1:]
	case finish:
		t := e.streams[s.talk]
		t.closed = true
		t.loss = t.closing.Done(false)
	case lose:
		w.losses--
		for i, e := range w.ends {
			e.broken, e.sent = true, nil
			if s.talk>>i&1 == 0 {
				continue
			}
			for i := range e.complete { // the word that its messages have arrived is lost, too
				if c := &e.complete[i]; !c.Recv {
					c.Status = fabric.Flushed
				}
			}
		}
		return
	case notice:
		e.noticed = true
		e.m.ConnectionChanged(fabric.ErrQueuePair)
	case adopt:
		e.adopt()
	case tick:
		e.m.Tick()
	}
	e.carryOut()
}

// arrive takes a message of the peer's, as a device does.
func (e *end) arrive(wr *fabric.WorkRequest) {
	if wr.Op != fabric.Send && wr.Len() > 0 {
		copy(e.place(wr.RemoteAddr, wr.RKey, wr.Len()), wr.Data)
	}
	if wr.Op == fabric.Write {
		return
	}
	if e.posted == 0 {
		panic(fmt.Sprintf("end %d: a message finds no receive", e.index))
	}
	e.posted--
	c := fabric.Completion{Recv: true, Status: fabric.OK, Op: wr.Op, Imm: wr.Imm, Len: wr.Len()}
	if wr.Op == fabric.Send {
		c.Data = wr.Data
	}
	e.complete = append(e.complete, c)
}

// place is the memory at an address, which the key has to be of.
func (e *end) place(addr uint64, rkey uint32, n int) []byte {
	for _, m := range e.memories {
		if addr >= m.addr && addr+uint64(n) <= m.addr+uint64(len(m.bytes)) && rkey == m.RKey() {
			return m.bytes[addr-m.addr:][:n]
		}
	}
	panic(fmt.Sprintf("end %d: a write of %d bytes to %#x with key %#x", e.index, n, addr, rkey))
}

// adopt has the end go on over the next queue pair. The first of the two exchanges what both have to tell.
func (e *end) adopt() {
	if !e.told {
		for _, from := range e.w.ends {
			to := from.peer()
			to.others = Exchange{Received: from.m.Snapshot(), Posted: wire.MinReceives + credit.LinkControlReceives, UnderWay: 1}
			to.told = true
		}
		for _, to := range e.w.ends {
			to.others.Own, to.others.Peer = to.regions(to.epoch+1), to.peer().regions(to.epoch+1)
		}
	}
	x := e.others
	e.told, e.broken, e.noticed, e.flushed = false, false, false, false
	e.epoch++
	e.posted = x.Posted
	e.complete = append(e.complete[:0:0], fabric.Completion{ID: KeysID, Status: fabric.OK})
	if err := e.m.Adopt(x); err != nil {
		panic(fmt.Sprintf("end %d: %v", e.index, err))
	}
}

func (e *end) regions(epoch int) (all wire.Regions) {
	for _, m := range e.memories {
		all = append(all, wire.Region{Addr: m.addr, Size: uint32(len(m.bytes)), Key: m.key(epoch)})
	}
	all.Sort()
	return all
}

// letter is the byte at a position of one direction of a stream.
func letter(id, from, at int) byte { return byte(1 + (17*id+5*from+at)%251) }

// act has the application do what comes next.
func (e *end) act(t *talk) {
	o := &t.script[0]
	switch o.kind {
	case write:
		if n := e.write(t, o.n); n < o.n {
			o.n -= n
			return
		}
	case read:
		e.read(t)
	case closeWrite:
		if err := t.s.CloseWrite(); err != nil {
			t.loss = err
		}
	case closeNow, closeLinger:
		c, err := t.s.Close(o.kind == closeNow)
		if err != nil {
			panic(err)
		}
		c.End()
		t.closing = &c
		if o.kind == closeNow {
			t.closed = true
			t.loss = c.Done(false)
		}
	}
	t.script = t.script[1:]
}

// write accepts up to n bytes. It says n, too, if nothing can be written any more.
func (e *end) write(t *talk, n int) int {
	m, err := t.s.Room(n)
	if err != nil {
		t.loss = err
		t.s.QuitStagingLine()
		return n
	}
	data := make([]byte, m)
	for i := range data {
		data[i] = letter(t.id, e.index, t.written+i)
	}
	switch {
	case m == 0:
		return 0
	case t.s.MaySendNow(m):
		t.s.SendNow(m, data, nil)
	default:
		if m = min(m, t.s.StagingRoom(m)); m == 0 {
			t.s.JoinStagingLine()
			return 0
		}
		first, second := t.s.Append(m)
		copy(second, data[copy(first, data):m])
	}
	t.written += m
	return m
}

// read takes all that has arrived.
func (e *end) read(t *talk) {
	first, second, err := t.s.Arrived(1 << 20)
	if err != nil {
		t.ended = true
		if err != io.EOF {
			t.loss = err
		}
		other := e.w.talk(1-e.index, t.id)
		if err == io.EOF && t.read != other.written {
			panic(fmt.Sprintf("end %d: stream %d ends behind %d bytes of %d", e.index, t.id, t.read, other.written))
		}
		return
	}
	for _, part := range [][]byte{first, second} {
		for _, b := range part {
			if b != letter(t.id, 1-e.index, t.read) {
				panic(fmt.Sprintf("end %d: byte %d of stream %d is %d", e.index, t.read, t.id, b))
			}
			t.read++
		}
	}
	t.s.Taken(len(first) + len(second))
}

// talk is the end of a stream.
func (w *world) talk(end, id int) *talk {
	for _, t := range w.ends[end].streams {
		if t.id == id {
			return t
		}
	}
	return &talk{}
}

// stuck says what has not come to its end although nothing can happen any more; "": all has.
func (w *world) stuck() string {
	for i, e := range w.ends {
		if e.m.Stage() != Up {
			if e.m.Stage() < Ended {
				return fmt.Sprintf("end %d: %v", i, e.m)
			}
			continue
		}
		if what := e.m.WaitsInVain(); what != "" {
			return what
		}
		if q := &e.m.send.slots; q.Outstanding() > q.Unsignaled() {
			return fmt.Sprintf("end %d: %d work requests have not completed: %v", i, q.Outstanding(), e.m)
		}
		for _, t := range e.streams {
			other := w.talk(1-i, t.id)
			switch {
			case t.closing != nil && !t.closed:
				return fmt.Sprintf("end %d: the Close of stream %d waits: %v", i, t.id, t.s)
			case other.s == nil || other.closing != nil || t.loss == syscall.ECONNRESET || t.s.ledger.Dropped():
			case t.s.Unsent() > 0 && other.s.Unread() < worldRing/2:
				return fmt.Sprintf("end %d: %d bytes of stream %d are not sent", i, t.s.Unsent(), t.id)
			case other.read+other.s.Unread() != t.written-t.s.Unsent():
				return fmt.Sprintf("end %d: of %d bytes of stream %d, %d have arrived", i, t.written, t.id, other.read+other.s.Unread())
			}
		}
	}
	return ""
}
