package link

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
)

// talk is a stream, of which one end may be missing: nobody was told of it.
type talk struct {
	id    uint64
	ends  [2]*end
	first bool // it began with its link, at whose listening side it has arrived
}

// firstOf takes note of a stream that Accept has returned.
func (w *world) firstOf(s *Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.talks {
		if e := t.ends[1]; e != nil && e.s == s {
			t.first = true
		}
	}
}

// meets says which stream has one end alone, whose calls have succeeded. Called with mu held.
func (w *world) meets(t *talk) (waiting string, at *end) {
	dialed, accepted := t.ends[0], t.ends[1]
	switch {
	case accepted == nil && !w.excused(dialed.s) && !dialed.abrupt && dialed.in.final == nil:
		return fmt.Sprintf("stream %d, which was dialed (closed %t), to be accepted", t.id, dialed.closed), dialed
	case dialed == nil && t.first && !w.excused(accepted.s):
		return fmt.Sprintf("stream %d, which was accepted, to be dialed", t.id), accepted
	}
	return "", nil
}

// end is one end of a stream. Guarded by world.mu.
type end struct {
	p       *process
	s       *Stream
	talk    *talk
	out, in *way

	reading, writing, closing bool // such a call is under way
	closed                    bool // Close has begun
	deaf                      bool // CloseRead has begun
	abrupt                    bool // Close was told not to linger, or did not deliver
	done                      bool // Close has returned
}

// way is one direction of a stream. Guarded by world.mu.
type way struct {
	id       uint64
	asked    int  // bytes that may have been accepted
	accepted int  // bytes that calls have said are
	read     int  // bytes
	ended    bool // by CloseWrite or Close
	final    error
}

// other is the end that the peer has, or nil.
func (e *end) other() *end {
	for _, o := range e.talk.ends {
		if o != e {
			return o
		}
	}
	return nil
}

// meeting is what the two ends of a stream know of each other. A link that comes after another
// may have its addresses.
type meeting struct {
	link uint64
	Path
}

// opened and arrived take note of an end of a stream, at the side that dialed it and
// at the other.
func (w *world) opened(p *process, s *Stream) {
	w.enter(p, s, meeting{s.link.path.own.Link, Path{s.local, s.remote}}, 0)
}

func (w *world) arrived(p *process, s *Stream) {
	w.enter(p, s, meeting{s.link.path.own.Link, Path{s.remote, s.local}}, 1)
}

func (w *world) enter(p *process, s *Stream, key meeting, side int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.meeting[key]
	if t == nil || t.ends[side] != nil {
		w.nextID += 2
		t = &talk{id: w.nextID}
		w.meeting[key] = t
		w.talks = append(w.talks, t)
	} else {
		delete(w.meeting, key)
	}
	e := &end{p: p, s: s, talk: t}
	if o := t.ends[1-side]; o != nil {
		e.out, e.in = o.in, o.out
	} else {
		e.out, e.in = &way{id: t.id}, &way{id: t.id + 1}
	}
	t.ends[side] = e
	w.tally.streams += 1 - side
	w.note("stream", t.id, uint64(side), s.link.path.own.Link)
}

// most is how many streams a world has, and in a crowded one atOnce of them are opened at once.
func (w *world) most() int {
	if w.crowded {
		return 200
	}
	return 20
}

const atOnce = 20

// act has an application do something, and says what.
func (w *world) act() string {
	w.mu.Lock()
	n := len(w.talks)
	var e *end
	if n > 0 {
		t := w.talks[w.r.IntN(n)]
		e = t.ends[w.r.IntN(2)]
	}
	w.mu.Unlock()
	switch x := w.r.IntN(100); {
	case n == 0 || x < 12 && n < w.most():
		for many := 1; w.crowded && many < atOnce; many++ {
			w.open()
		}
		return w.open()
	case e == nil:
		return ""
	case w.crowded && x < 20:
		return w.writeToMany(e.s.link)
	case x < 50:
		return w.write(e)
	case x < 88:
		return w.read(e)
	case x < 90:
		return w.closeWrite(e)
	case x < 91:
		return w.closeRead(e)
	case x < 96:
		return w.close(e, w.linger())
	case w.r.IntN(8) > 0:
		return ""
	case x < 97:
		_ = e.s.Stats()
		_ = List()
		_ = Totals()
		return "stats"
	case x < 98:
		CloseIdle()
		return "idle links leave"
	default:
		p := w.processes[w.r.IntN(2)]
		limit := int64(1) << 62
		if w.r.IntN(2) == 0 {
			limit = int64(inUse(p.cfg.Budget) + w.r.IntN(1<<20) - 1<<18)
		}
		p.limit.Store(limit)
		p.cfg.Budget.Refresh()
		return "memory is short, or is not"
	}
}

// begin takes note that a call is under way, unless that is so already of that kind,
// and returns what ends it. Called with mu held.
func (w *world) begin(under *bool, what string, e *end, n int) (over func()) {
	*under = true
	w.busy++
	w.note(what, e.talk.id, uint64(e.p.index), uint64(n))
	return func() {
		*under = false
		w.busy--
	}
}

// beginOpen takes note that a stream or a link is being opened, and returns what ends it.
func (w *world) beginOpen() (over func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy++
	w.opening++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
		w.opening--
	}
}

// open begins another stream.
func (w *world) open() string {
	ln := w.lines[w.r.IntN(len(w.lines))]
	ln.mu.Lock()
	l, dialing := ln.link, ln.dialing
	ln.mu.Unlock()
	patience := time.Hour
	if w.r.IntN(4) == 0 {
		patience = time.Duration(w.r.IntN(int(time.Millisecond) << w.r.IntN(12)))
	}
	if l == nil || !l.usable() && w.r.IntN(4) == 0 || w.r.IntN(50) == 0 {
		if dialing {
			return ""
		}
		w.makeLink(ln)
		return "link"
	}
	if !l.usable() {
		return ""
	}
	over := w.beginOpen()
	go func() {
		defer over()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s, err := l.Open(ctx)
		if err == nil {
			w.opened(ln.from, s)
		}
	}()
	return "open"
}

// makeLink has a line dial another link.
func (w *world) makeLink(ln *line) {
	ln.mu.Lock()
	ln.dialing = true
	ln.mu.Unlock()
	over := w.beginOpen()
	go func() {
		defer over()
		w.dial(ln)
		ln.mu.Lock()
		ln.dialing = false
		ln.mu.Unlock()
	}()
}

// soonOrNever is a deadline, and whether there is one.
func (w *world) soonOrNever() (d *deadline.Deadline, passes bool) {
	d = deadline.New()
	if w.r.IntN(4) == 0 {
		d.Set(time.Now().Add(time.Duration(w.r.IntN(int(time.Microsecond) << w.r.IntN(20)))))
		passes = true
	}
	return d, passes
}

// write writes to a stream in one way or another.
func (w *world) write(e *end) string {
	n := 1 + w.r.IntN(1<<w.r.IntN(17))
	how := w.r.IntN(8)
	d, passes := w.soonOrNever()
	cut := 1 + w.r.IntN(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.writing || e.closed || e.out.ended && w.r.IntN(20) > 0 {
		return ""
	}
	w.startWrite(e, how, n, cut, d, passes)
	return [...]string{"write buffers", "write a buffer", "write"}[min(how, 2)]
}

// writeToMany has one process write to all streams of a link, and the other answer on most of
// them, so that all of that is under way when the path is lost, and then on the others.
func (w *world) writeToMany(l *Link) string {
	asks := w.r.IntN(2)
	w.spared.Store(w.r.Int64N(4))
	w.writeTo(w.processes[asks], l, func(bool) bool { return true })
	time.Sleep(20 * time.Millisecond) // that is a conversation
	ep := endpointOf(l)
	ep.Cut(w.rate > 0)
	w.writeTo(w.processes[1-asks], l, func(spared bool) bool { return !spared })
	time.Sleep(time.Microsecond)
	if w.rate > 0 {
		w.tally.faults++
		ep.Fail(fabric.ErrQueuePair)
		time.Sleep(time.Microsecond)
	}
	w.writeTo(w.processes[1-asks], l, isSpared)
	return "write to many"
}

// writeTo has a process write a little, twice, to some of the streams of a link.
func (w *world) writeTo(p *process, l *Link, to func(spared bool) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, t := range w.talks {
		for _, e := range t.ends {
			if e != nil && e.p == p && e.s.link.path.own.Link == l.path.own.Link && !e.writing && !e.closed && !e.out.ended && to(int64(i%4) == w.spared.Load()) {
				w.startWrite(e, twice, 2+e.out.accepted%32, 1, deadline.New(), false)
			}
		}
	}
}

func isSpared(spared bool) bool { return spared }

// twice is a way to write, in which nothing else writes.
const twice = -1

// startWrite has a call write. Called with mu held.
func (w *world) startWrite(e *end, how, n, cut int, d *deadline.Deadline, passes bool) {
	over := w.begin(&e.writing, "write", e, n)
	at := e.out.accepted
	e.out.asked = at + n
	go func() {
		p := slices.Clone(noiseOf(e.out.id, at, n))
		m, err := w.writeOneWayOrAnother(e.s, how, p, cut, d)
		clear(p) // it is ours again
		d.Set(time.Time{})
		w.mu.Lock()
		defer w.mu.Unlock()
		over()
		e.out.accepted += m
		e.out.asked = e.out.accepted
		if (m != n) != (err != nil) || m > n {
			w.breach("stream %d: %d bytes of %d written: %v", e.talk.id, m, n, err)
		}
		if err != nil {
			w.judge("write", e, err, passes)
		}
	}()
}

func (w *world) writeOneWayOrAnother(s *Stream, how int, p []byte, cut int, d *deadline.Deadline) (int, error) {
	switch how {
	case twice:
		n, err := s.Write(p[:cut], d)
		if err != nil {
			return n, err
		}
		m, err := s.Write(p[cut:], d)
		return n + m, err
	case 0:
		v := net.Buffers{p[:cut], p[cut:]}
		n, err := s.WriteBuffers(&v, d)
		return int(n), err
	case 1:
		b, err := s.NewBuffer(len(p))
		if err != nil {
			return s.Write(p, d) // there is no memory, or the link has no queue pair
		}
		copy(b.Bytes(), p)
		n, err := s.WriteBuffer(b, 0, len(p), d)
		b.Close()
		return n, err
	}
	return s.Write(p, d)
}

// read reads from a stream in one way or another.
func (w *world) read(e *end) string {
	n := 1 + w.r.IntN(1<<w.r.IntN(18))
	how := w.r.IntN(4)
	d, passes := w.soonOrNever()
	if how < 2 && !passes {
		d.Set(time.Now().Add(time.Duration(w.r.IntN(int(100 * time.Millisecond)))))
		passes = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.reading || e.closed || e.in.final != nil && w.r.IntN(50) > 0 {
		return ""
	}
	w.startRead(e, how, n, d, passes)
	return [...]string{"peek", "await", "read", "read"}[how]
}

// startRead has a call read. Called with mu held.
func (w *world) startRead(e *end, how, n int, d *deadline.Deadline, passes bool) {
	over := w.begin(&e.reading, "read", e, n)
	go func() {
		p, err := readIn(e.s, how, n, d)
		d.Set(time.Time{})
		w.mu.Lock()
		defer w.mu.Unlock()
		over()
		at := e.in.read
		e.in.read += len(p)
		w.tally.bytes += len(p)
		switch {
		case e.in.read > e.in.asked:
			w.breach("stream %d: %d bytes read at %d of %d written", e.talk.id, len(p), at, e.in.asked)
		case !bytes.Equal(p, noiseOf(e.in.id, at, len(p))):
			w.breach("stream %d: bytes %d to %d are others", e.talk.id, at, e.in.read)
		case err == nil || errors.Is(err, os.ErrDeadlineExceeded) && passes:
			return
		}
		w.judge("read", e, err, passes)
		if e.in.final == nil {
			e.in.final = err
		}
	}()
}

// readIn takes bytes from a stream.
func readIn(s *Stream, how, n int, d *deadline.Deadline) ([]byte, error) {
	switch how {
	case 0:
		held, err := s.Peek(n, d)
		p := bytes.Clone(held)
		if err == bufio.ErrBufferFull {
			err = nil
		}
		if len(p) == 0 {
			return nil, err
		}
		m, discarded := s.Discard(len(p), unlimited())
		if discarded != nil && m < len(p) {
			return p[:m], discarded
		}
		return p, nil // whatever the error is, the next call returns it too
	case 1:
		return nil, s.AwaitRead(d)
	}
	p := make([]byte, n)
	m, err := s.Read(p, d)
	return p[:m], err
}

// describe says how far an end is, for whoever looks into a breach. Called without the
// world's mu, for a link calls the world with its own held.
func (e *end) describe() string {
	s, l := e.s, e.s.link
	l.lock()
	defer l.unlock()
	return fmt.Sprintf("%v; %v; called %t, watched %t, asleep %t", l.m, s.m, l.watch.called, l.watch.holder != nil, l.watch.in != nil)
}

// judge sees whether a call on a stream had to fail so. Called with mu held.
func (w *world) judge(what string, e *end, err error, passes bool) {
	o := e.other()
	peerCloses := o == nil || o.closed
	ok := false
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		ok = passes
	case errors.Is(err, net.ErrClosed):
		ok = e.closed
	case err == io.EOF:
		ok = e.deaf || e.in.ended || o == nil
	case errors.Is(err, syscall.EPIPE):
		ok = e.out.ended || peerCloses
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ETIMEDOUT):
		ok = peerCloses // and perhaps the link, which nobody uses there, is gone
	}
	if !ok && !w.excused(e.s) {
		w.breach("stream %d of process %d: %s: %v", e.talk.id, e.p.index, what, err)
	}
}

// mayBeOver reports whether a stream may be over though this end is not closed. Called with
// mu held.
func (w *world) mayBeOver(e *end) bool {
	o := e.other()
	return w.excused(e.s) || o == nil || o.closed || e.in.ended && e.out.ended
}

func (w *world) closeWrite(e *end) string {
	w.mu.Lock()
	if e.closed || e.out.ended {
		w.mu.Unlock()
		return ""
	}
	e.out.ended = true
	over := w.begin(&e.closing, "close write", e, 0)
	w.mu.Unlock()
	err := e.s.CloseWrite()
	w.mu.Lock()
	defer w.mu.Unlock()
	over()
	if err != nil && !w.mayBeOver(e) {
		w.breach("stream %d: close write: %v", e.talk.id, err)
	}
	return "close write"
}

func (w *world) closeRead(e *end) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.closed || e.deaf || e.closing {
		return ""
	}
	e.deaf = true
	over := w.begin(&e.closing, "close read", e, 0)
	go func() {
		err := e.s.CloseRead()
		w.mu.Lock()
		defer w.mu.Unlock()
		over()
		if err != nil && !e.closed && !w.mayBeOver(e) {
			w.breach("stream %d: close read: %v", e.talk.id, err)
		}
	}()
	return "close read"
}

func (w *world) linger() time.Duration {
	return []time.Duration{0, 100 * time.Millisecond, time.Minute, w.resume + time.Minute}[w.r.IntN(4)]
}

// close closes an end.
func (w *world) close(e *end, linger time.Duration) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.closed || e.closing {
		return ""
	}
	e.closed, e.out.ended = true, true
	over := w.begin(&e.closing, "close", e, int(linger/time.Millisecond))
	go func() {
		err := e.s.Close(linger)
		w.mu.Lock()
		defer w.mu.Unlock()
		over()
		w.note("closed", e.talk.id, uint64(e.p.index))
		e.abrupt = linger == 0 || err != nil
		if err != nil && !w.excused(e.s) && !(err == syscall.ETIMEDOUT && linger <= time.Minute) && !w.isUnread(e, err) {
			w.breach("stream %d of process %d: close: %v", e.talk.id, e.p.index, err)
		}
		e.done = true
	}()
	return "close"
}

// isUnread reports whether the error is that the other end has been closed, and did not read all. Called with
// mu held.
func (w *world) isUnread(e *end, err error) bool {
	o := e.other()
	return (err == syscall.EPIPE || err == syscall.ECONNRESET) && (o == nil || o.closed && (e.out.read < e.out.accepted || o.abrupt || !o.done))
}

// checkBytes sees that all that was written was read where the end was an orderly one.
func (w *world) checkBytes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.talks {
		for _, e := range t.ends {
			if e == nil || e.deaf || e.in.final == nil || e.in.read == e.in.accepted {
				continue
			}
			o := e.other()
			if e.in.final == io.EOF || o != nil && !w.excused(e.s) && !o.abrupt && errors.Is(e.in.final, syscall.ECONNRESET) {
				w.breach("stream %d: process %d has read %d bytes of %d, and then %v", t.id, e.p.index, e.in.read, e.in.accepted, e.in.final)
			}
		}
	}
}

// readOn reads what there is to be read, and says what is still waited for, at one end.
func (w *world) readOn() (waiting string, at *end) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.talks {
		if alone, end := w.meets(t); alone != "" {
			waiting, at = alone, end
		}
		for _, e := range t.ends {
			switch {
			case e == nil || e.closed:
			case e.in.final != nil || e.deaf:
				if e.writing {
					waiting, at = fmt.Sprintf("stream %d: write of process %d", t.id, e.p.index), e
				}
			case e.in.read < e.in.asked || e.in.ended || e.writing && w.excused(e.s):
				waiting, at = fmt.Sprintf("stream %d: process %d has read %d bytes of %d (ended %t)", t.id, e.p.index, e.in.read, e.in.asked, e.in.ended), e
				if !e.reading {
					w.startRead(e, 2, 1<<16, deadline.New(), false)
				}
			}
			if e != nil && e.closing {
				waiting, at = fmt.Sprintf("stream %d: close of process %d", t.id, e.p.index), e
			}
		}
	}
	return waiting, at
}

// closeOn closes what is not closed and has nothing more to read, and says what is
// still waited for.
func (w *world) closeOn() (waiting string) {
	w.mu.Lock()
	talks := slices.Clone(w.talks)
	if w.busy > 0 {
		waiting = fmt.Sprintf("%d calls under way", w.busy)
	}
	w.mu.Unlock()
	for _, t := range talks {
		for _, e := range t.ends {
			if e == nil {
				continue
			}
			w.mu.Lock()
			closed, done, final, ended := e.closed, e.done, e.in.final != nil || e.deaf, e.out.ended
			if !closed && !final && !e.reading {
				w.startRead(e, 2, 1<<16, deadline.New(), false)
			}
			w.mu.Unlock()
			switch {
			case done:
				continue
			case closed:
			case final:
				w.close(e, w.resume+time.Minute)
			case !ended:
				w.closeWrite(e)
			}
			waiting = fmt.Sprintf("stream %d: end of process %d: closed %t, final %t, ended %t", t.id, e.p.index, closed, final, ended)
		}
	}
	return waiting
}
