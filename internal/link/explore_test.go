package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// TestExplore has two processes do whatever comes to mind, on links that lose their
// queue pairs whenever that comes to mind: the steps of a world are drawn from its
// seed, in virtual time. explore_streams_test.go has what applications do, and
// explore_faults_test.go what is done to them. None of this may be breached:
//
//   - no byte is lost, doubled, foreign or out of its place: what is read is the
//     beginning of what was written, and all of it where the end was an orderly one;
//   - no call waits without an end: once the faults are over, all that was written is
//     read, within the time that links may seek a queue pair;
//   - in a patient world no link ends that only lost queue pairs;
//   - no credit is out of its bounds, and no message finds no receive posted;
//   - in the end no memory, address, endpoint or goroutine is left.
//
// RINGNET_EXPLORE is how many steps to make in all, and RINGNET_EXPLORE_SEED the seed
// of the first world; each world after it has the next. Those with even ones are crowded:
// they have up to 200 streams, which write all at once now and then, and queues so long that
// all of it is under way. With one processor and
// GODEBUG=asyncpreemptoff=1 a world goes most of the same way again: what it does not
// draw from its seed is what the runtime does, such as select among what is ready.
func TestExplore(t *testing.T) {
	steps := variable("RINGNET_EXPLORE", 20_000)
	if testing.Short() || raceEnabled {
		steps = variable("RINGNET_EXPLORE", 4_000)
	}
	if !raceEnabled {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	first := uint64(variable("RINGNET_EXPLORE_SEED", 1))
	var sum tally
	defer func() { testHookGaveWay = func(*Link) {} }()
	seed := first
	for began := time.Now(); sum.steps < steps; seed++ {
		synctest.Test(t, func(t *testing.T) { newWorld(t, seed, seed%2 == 0).live(&sum) })
		if sum.steps/1_000_000 != (sum.steps-stepsOfWorld)/1_000_000 {
			t.Logf("seeds %d to %d in %v: %v", first, seed, time.Since(began).Round(time.Second), &sum)
		}
	}
	t.Logf("seeds %d to %d: %v", first, seed-1, &sum)
	if sum.faults > 5_000 {
		require.Positive(t, sum.crossed)
	}
	if sum.faults > 50_000 { // one in a thousand
		require.Positive(t, sum.bothGaveWay)
	}
}

func variable(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// tally counts what worlds have seen.
type tally struct {
	steps, faults int
	virtual       time.Duration
	kinds         map[string]int
	bytes         int
	streams       int
	links, moves  int // links that were made, and how often one went on over another queue pair
	crossed       int // requests for another that were given up for the peer's
	bothGaveWay   int // of those, pairs that were given up for each other
	ends          int // links that ended with a cause
}

func (c *tally) String() string {
	names := make([]string, 0, len(c.kinds))
	for name := range c.kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	var kinds strings.Builder
	for _, name := range names {
		fmt.Fprintf(&kinds, "\n%10d %s", c.kinds[name], name)
	}
	return fmt.Sprintf("%d steps, %d of them faults, %d streams, %d links, %d resumptions, %d requests given up for the peer's, %d pairs of them for each other, %d links ended, %d MB read, %v of virtual time%v",
		c.steps, c.faults, c.streams, c.links, c.moves, c.crossed, c.bothGaveWay, c.ends, c.bytes>>20, c.virtual.Round(time.Second), &kinds)
}

// stepsOfWorld is how many steps a world lives, and untilCalm about how many it takes
// between two times at which everything is waited for.
const (
	stepsOfWorld = 1000
	untilCalm    = 150
)

// world is two processes and the links between them.
type world struct {
	t         *testing.T
	seed      uint64
	r         *rand.Rand // of the driver alone
	n         *sim.Network
	began     time.Time
	crowded   bool          // has many streams, and long queues
	spared    atomic.Int64  // the quarter of its streams that did not write when many did: see writeToMany
	patient   bool          // nothing but what excuses it ends a link
	resume    time.Duration // Config.ResumeTimeout
	rate      int           // faults in a hundred steps
	alive     bool          // both processes find out by themselves when the other is gone
	cards     []netip.Addr  // of all hosts, which have several; none if they have one
	processes [2]*process
	lines     []*line
	kinds     map[string]int

	faults faults

	mu      sync.Mutex // guards what follows
	pairs   map[uint64]*linkPair
	talks   []*talk
	meeting map[meeting]*talk // of which one end has come
	nextID  uint64
	busy    int // calls under way
	opening int // of those, that make a stream or a link
	trace   []traced
	tally   *tally
}

// traced is something that happened, for whoever looks into a breach.
type traced struct {
	at   time.Duration
	what string
	args [3]uint64
}

// process is what one process has.
type process struct {
	w        *world
	index    int
	cfg      Setup
	fabric   fabric.Fabric
	listener fabric.Listener
	limit    atomic.Int64 // of its budget
}

// line is for streams that one process dials to the other.
type line struct {
	from, to *process
	mu       sync.Mutex // guards what follows
	link     *Link
	dialing  bool
}

// linkPair is both ends of a link.
type linkPair struct {
	number  uint64
	ends    [2]*Link // by process
	excused bool     // something has happened that it need not outlive
	gaveWay requests // of the end that has last given up a request of its own for the peer's
}

func newWorld(t *testing.T, seed uint64, crowded bool) *world {
	r := rand.New(rand.NewPCG(seed, 0))
	w := &world{
		t: t, seed: seed, r: r, began: time.Now(), crowded: crowded,
		patient: r.IntN(4) > 0,
		rate:    []int{0, 3, 10, 30, 60}[r.IntN(5)],
		alive:   r.IntN(4) > 0,
		pairs:   make(map[uint64]*linkPair),
		meeting: make(map[meeting]*talk),
		kinds:   make(map[string]int),
	}
	w.resume = 10 * time.Minute
	if !w.patient {
		w.alive = true
		w.resume = time.Duration(1+r.IntN(5)) * time.Second
	}
	network := sim.Link{
		Latency: []time.Duration{0, 10 * time.Microsecond, 200 * time.Microsecond, 5 * time.Millisecond}[r.IntN(4)],
		Jitter:  []time.Duration{0, 0, 50 * time.Microsecond, 2 * time.Millisecond}[r.IntN(4)],
		Seed:    seed,
	}
	if r.IntN(3) == 0 {
		network.Bandwidth = 1 << (20 + r.IntN(12))
	}
	if r.IntN(4) == 0 {
		network.Inline = -1
	}
	network.KeepMemory = r.IntN(8) == 0
	w.n = sim.New(network)
	if r.IntN(2) == 0 {
		w.cards = []netip.Addr{hostAt(0, 0), hostAt(0, 1), hostAt(1, 0), hostAt(1, 1)}
	}
	testHookGaveWay = w.gaveWay
	w.faults.w = w
	w.n.SetFaults(w.faults.hooks())
	for i := range w.processes {
		w.processes[i] = w.newProcess(i)
	}
	lines := 1
	if !crowded {
		lines += r.IntN(3)
	}
	for range lines {
		from := r.IntN(2)
		w.lines = append(w.lines, &line{from: w.processes[from], to: w.processes[1-from]})
	}
	return w
}

func (w *world) newProcess(i int) *process {
	r := w.r
	p := &process{w: w, index: i}
	p.limit.Store(budget.Unlimited)
	p.cfg = Setup{
		Config: Config{
			RecvBuffer:       4 << 10 << r.IntN(7),
			SendBuffer:       16 << 10 << r.IntN(4),
			SendQueue:        minSendQueue << r.IntN(4),
			RecvQueue:        wire.MinReceives << r.IntN(5),
			KeepAlive:        []time.Duration{200 * time.Millisecond, time.Second, 10 * time.Second}[r.IntN(3)],
			HandshakeTimeout: 10 * time.Second,
			LinkIdle:         []time.Duration{0, time.Second, 30 * time.Second}[r.IntN(3)],
			Dedicated:        r.IntN(4) == 0,
			ResumeTimeout:    w.resume,
			AckTimeout:       []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}[r.IntN(3)],
			Retries:          r.IntN(8),
		},
		ProbeTimeout: 15 * time.Second,
		FirstStaging: 4 << 10 << r.IntN(5),
		RemoteMemory: 1 << 20 << r.IntN(4),
		Addresses:    new(Addresses),
		Acceptor:     p,
		Budget:       budget.New(func() budget.Limits { return budget.Limits{Registered: int(p.limit.Load()), Locked: budget.Unlimited} }),
	}
	if !w.alive {
		p.cfg.KeepAlive = -1
	}
	if w.crowded {
		p.cfg.SendQueue, p.cfg.RecvQueue = 256<<r.IntN(5), 256<<r.IntN(5)
	}
	var cards []fabric.Card
	for network := range max(1, len(w.cards)/2) {
		cards = append(cards, fabric.Card{hostAt(network, i)})
	}
	p.fabric = w.n.Host(cards...)
	p.cfg.Reconnect = &ReconnectListener{Fabric: p.fabric}
	l, err := p.fabric.Listen(netip.AddrPortFrom(cards[0][0], 0), 8)
	w.must(err)
	p.listener = l
	go p.serve()
	return p
}

// hostAt is the address of a process at a network.
func hostAt(network, process int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(network), byte(process + 1)})
}

// must ends everything for a reason that the world itself is to blame for.
func (w *world) must(err error) {
	if err != nil {
		w.breach("the world itself: %v", err)
	}
}

// breach ends everything: what goroutines there are show where they wait.
func (w *world) breach(format string, args ...any) {
	var b strings.Builder
	for _, e := range w.trace[max(0, len(w.trace)-500):] {
		fmt.Fprintf(&b, "%14v %s %d\n", e.at, e.what, e.args)
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	fmt.Fprintf(os.Stderr, "%s\n%s\n", stacks, b.String())
	fmt.Fprintf(os.Stderr, "RINGNET_EXPLORE_SEED=%d, patient %t, %v: %s\n", w.seed, w.patient, time.Since(w.began), fmt.Sprintf(format, args...))
	os.Exit(1)
}

// note takes down what happens.
func (w *world) note(what string, args ...uint64) {
	e := traced{at: time.Since(w.began), what: what}
	copy(e.args[:], args)
	w.trace = append(w.trace, e)
}

// live makes the world's steps, and brings it to its end.
func (w *world) live(sum *tally) {
	w.tally = sum
	for made := 0; made < stepsOfWorld; {
		if w.step() {
			made++
		}
		w.pause()
		if w.r.IntN(untilCalm) == 0 {
			w.calm()
		}
	}
	w.calm()
	w.end()
	sum.steps += stepsOfWorld
	sum.virtual += time.Since(w.began)
	if sum.kinds == nil {
		sum.kinds = make(map[string]int)
	}
	for kind, n := range w.kinds {
		sum.kinds[kind] += n
	}
}

// step does one thing at random, and reports whether it could.
func (w *world) step() bool {
	kind := ""
	if w.r.IntN(100) < w.rate || w.faults.storm > 0 && w.r.IntN(2) == 0 {
		kind = w.fault()
	} else {
		kind = w.act()
	}
	if kind == "" {
		return false
	}
	if w.faults.storm > 0 {
		w.faults.storm--
	}
	w.kinds[kind]++
	w.checkLinks()
	return true
}

// pause lets time pass, from none to long enough for everything to come to rest.
func (w *world) pause() {
	most := []time.Duration{0, 0, 0, time.Microsecond, 20 * time.Microsecond, 200 * time.Microsecond, time.Millisecond, 10 * time.Millisecond}[w.r.IntN(8)]
	switch w.r.IntN(400) {
	case 0:
		most = 10 * time.Second
	case 1, 2, 3:
		most = time.Second
	case 4, 5, 6, 7, 8, 9:
		if len(w.cards) > 0 {
			most = 3 * time.Second
		}
	}
	if most == 0 {
		runtime.Gosched()
		return
	}
	time.Sleep(time.Duration(w.r.Int64N(int64(most))))
}

// calm has the faults end and sees that all that was written is read.
func (w *world) calm() {
	w.faults.mend()
	w.mu.Lock()
	w.note("calm")
	w.mu.Unlock()
	limit := time.Now().Add(w.resume + time.Minute)
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		waiting, at := w.readOn()
		if waiting == "" {
			break
		}
		if time.Now().After(limit) {
			state := at.describe()
			w.mu.Lock()
			w.breach("a wait without an end: %s: %s", waiting, state)
		}
		time.Sleep(pause)
	}
	w.checkLinks()
	w.checkRings()
}

// checkRings sees that no link has lost memory that it took for a ring, while no stream begins.
func (w *world) checkRings() {
	of := make(map[*Link][]*Stream)
	w.mu.Lock()
	beginning := w.opening > 0
	for _, t := range w.talks {
		for _, e := range t.ends {
			if e != nil {
				of[e.s.link] = append(of[e.s.link], e.s)
			}
		}
	}
	w.mu.Unlock()
	for l := range w.eachLink() {
		l.lock()
		wrong := ""
		if l.m.Stage() == machine.Up && !beginning {
			wrong = cmp.Or(l.ringsAmiss(of[l]), l.waitsInVain())
		}
		l.unlock()
		if wrong != "" {
			w.mu.Lock()
			w.breach("link %v to %v: %s", l.local, l.remote, wrong)
		}
	}
}

// end closes everything, and looks at what is left.
func (w *world) end() {
	w.mu.Lock()
	w.note("end")
	w.mu.Unlock()
	w.closeAll()
	time.Sleep(10 * time.Second) // an OPEN that nobody wants any more may still be on its way
	w.closeAll()
	w.checkBytes()
	for _, p := range w.processes {
		w.must(p.listener.Close())
	}
	time.Sleep(w.resume + 3*time.Minute) // a link waits so long for a dialer that does not come back
	if n := w.n.Open(); n > 0 {
		for _, ep := range w.n.Endpoints() {
			w.note("endpoint left open", uint64(ep.LocalAddr().Port()), uint64(ep.RemoteAddr().Port()))
		}
		for l := range w.eachLink() {
			if l.m.Stage() != machine.Closed {
				w.note("link in "+l.m.String(), l.path.own.Link)
			}
		}
		w.breach("%d endpoints or listeners left open", n)
	}
	if n := w.n.RNR(); n > 0 {
		w.breach("%d messages found no receive posted", n)
	}
	for _, p := range w.processes {
		if n := inUse(p.cfg.Budget); n > 0 {
			w.breach("%d bytes left registered", n)
		}
		if n := len(p.cfg.Addresses.taken); n > 0 {
			w.breach("%d pairs of addresses left taken", n)
		}
		if r := p.cfg.Reconnect; r.waiting > 0 || len(r.links) > 0 {
			w.breach("%d links wait for peers, of which %d are known", r.waiting, len(r.links))
		}
	}
	for l := range w.eachLink() {
		w.tally.links++
		w.tally.moves += int(l.m.Moves())
	}
}

// closeAll closes all streams.
func (w *world) closeAll() {
	limit := time.Now().Add(w.resume + 2*time.Minute)
	for {
		waiting := w.closeOn()
		if waiting == "" {
			break
		}
		if time.Now().After(limit) {
			w.mu.Lock()
			w.breach("a wait without an end: %s", waiting)
		}
		time.Sleep(time.Millisecond)
	}
}

func (w *world) eachLink() func(func(*Link) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var links []*Link
	for _, pair := range w.pairs {
		for _, l := range pair.ends {
			if l != nil {
				links = append(links, l)
			}
		}
	}
	slices.SortFunc(links, func(a, b *Link) int { return a.local.Compare(b.local) })
	return slices.Values(links)
}

// checkLinks sees that the ledgers of all links are within their bounds.
func (w *world) checkLinks() {
	for l := range w.eachLink() {
		l.lock()
		wrong := cmp.Or(l.m.Amiss(), l.memoryAmiss())
		l.unlock()
		if wrong != "" {
			w.mu.Lock()
			w.breach("link %v to %v: %s", l.local, l.remote, wrong)
		}
	}
}

// serve takes the links that the other process dials.
func (p *process) serve() {
	for {
		ep, err := p.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			l, s, err := Accept(context.Background(), ep, p.cfg)
			if err != nil {
				return
			}
			p.w.met(p, l)
			p.w.arrived(p, s)
			p.w.firstOf(s)
		}()
	}
}

// Offer implements [Acceptor].
func (p *process) Offer(s *Stream) wire.RefuseReason {
	p.w.arrived(p, s)
	return 0
}

// Short implements [Acceptor].
func (p *process) Short(error) {}

// met takes note of an end of a link.
func (w *world) met(p *process, l *Link) {
	w.mu.Lock()
	number := l.path.own.Link
	pair := w.pairs[number]
	if pair == nil {
		pair = &linkPair{number: number}
		w.pairs[number] = pair
	}
	pair.ends[p.index] = l
	w.note("link", number, uint64(p.index))
	w.mu.Unlock()
	l.OnDown(func(cause error) { w.down(p, pair, cause) })
	l.OnMove(func(Info, time.Duration, error) {
		if w.crowded {
			w.writeTo(p, l, isSpared)
		}
	})
}

// gaveWay counts the requests for another queue pair that an end has given up for the peer's,
// and those that both have given up for each other's.
func (w *world) gaveWay(l *Link) {
	l.lock()
	own := l.path.requests
	l.unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally.crossed++
	pair := w.pairs[l.path.own.Link]
	if pair == nil {
		return
	}
	if peer := pair.gaveWay; own.made == peer.arrived && own.arrived == peer.made {
		w.tally.bothGaveWay++
	}
	pair.gaveWay = own
}

// down sees that a link had a reason to end.
func (w *world) down(p *process, pair *linkPair, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("down "+fmt.Sprint(cause), pair.number, uint64(p.index))
	if cause == nil {
		return
	}
	w.tally.ends++
	own, other := pair.ends[p.index], pair.ends[1-p.index]
	if w.patient && !pair.excused && own.live.Load() > 0 && w.inUse(own) && (other == nil && w.alive || other != nil && w.inUse(other)) {
		w.breach("link %d of process %d ended: %v", pair.number, p.index, cause)
	}
}

// inUse reports whether a stream on a link is not closed. Called with mu held.
func (w *world) inUse(l *Link) bool {
	return slices.ContainsFunc(w.talks, func(t *talk) bool {
		return slices.ContainsFunc(t.ends[:], func(e *end) bool { return e != nil && e.s.link == l && !e.done })
	})
}

// excused reports whether a stream's link need not be there any more. Called with mu held.
func (w *world) excused(s *Stream) bool {
	if !w.patient {
		return true
	}
	pair := w.pairs[s.link.path.own.Link]
	missing := pair == nil || pair.ends[0] == nil || pair.ends[1] == nil
	return missing && !w.alive || pair != nil && pair.excused // who does not ask whether its peer is there may never know
}

// dial makes another link of a line, and its first stream.
func (w *world) dial(ln *line) {
	ctx, cancel := context.WithTimeout(context.Background(), ln.from.cfg.HandshakeTimeout)
	defer cancel()
	ep, err := ln.from.fabric.Dial(ctx, netip.AddrPort{}, ln.to.listener.Addr())
	w.must(err)
	s, err := Dial(ctx, ep, ln.from.cfg)
	if err != nil {
		return
	}
	w.met(ln.from, s.link)
	ln.mu.Lock()
	ln.link = s.link
	ln.mu.Unlock()
	w.opened(ln.from, s)
}

// noise is what streams carry: each direction of each has a place in it to begin at.
var noise = func() []byte {
	b := make([]byte, 1<<20+1<<18)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b[:1<<20])
	copy(b[1<<20:], b)
	return b
}()

// piece is n bytes of what a direction carries, from a position on.
func noiseOf(id uint64, at, n int) []byte {
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], id*0x9e37_79b9_7f4a_7c15)
	from := (int(binary.LittleEndian.Uint32(seed[4:])>>12) + at) % (1 << 20)
	return noise[from : from+n]
}
