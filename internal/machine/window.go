package machine

import "time"

// MinWindow is how many bytes of bulk may always be under way before a message of another
// stream: one message of the largest size.
const MinWindow = maxMessage

// sendWindow bounds how many bytes of streams that send without an answer are under way, for in
// one queue pair no message overtakes another. To use all of the bandwidth takes as many
// bytes as travel in a round trip. More do no harm to a link that carries nothing else, but
// delay the messages of conversations. So some of those are timed. When one takes more than
// twice as long as the fastest has, the bound is halved, to MinWindow at least, if the staging
// memory has that; else the bound grows.
type sendWindow struct {
	limit, most int // bytes that may be under way, and at most
	posted      uint64
	completed   uint64            // bytes of posted that are known to be through
	marks       queue[postedMark] // the signaled work requests under way
	recovered   uint64            // completed, when limit last grew without a message timed

	timed   sent          // the message timed; 0: none is
	since   time.Time     // it was posted
	fastest time.Duration // of all; 0: none was timed
	passed  int           // messages of conversations not timed since
}

// postedMark is a work request, with all bytes that are posted by then.
type postedMark struct {
	with   sent
	posted uint64
}

// timeOneIn is of how many messages of conversations one is timed while no bulk is under
// way. A message that is timed has to be signaled, so not each is.
const timeOneIn = 64

// recovery is after how many bytes without a message timed the bound grows, by as much as
// after a message that was fast.
const recovery = 64 << 20

func (b *sendWindow) underWay() int { return int(b.posted - b.completed) }

// maySend reports whether n bytes more may be posted. If no work request under way is signaled
// they may, since no completion would come to wait for.
func (b *sendWindow) maySend(n int) bool {
	return b.underWay()+n <= b.limit || b.marks.Len() == 0
}

// toTime reports whether to time a message of a conversation, which has to be
// signaled then.
func (b *sendWindow) toTime() bool {
	b.passed++
	return b.timed == 0 && (b.underWay() >= MinWindow/2 || b.passed >= timeOneIn || b.fastest == 0)
}

// windowSignaled notes a signaled work request, behind all that is posted.
func (l *Link) windowSignaled(n sent, timed bool) {
	b := &l.send.window
	b.marks.push(postedMark{n, b.posted})
	if timed {
		b.timed, b.since, b.passed = n, l.now(), 0
	}
}

// windowCompleted notes what has completed, and adapts the bound.
func (l *Link) windowCompleted() {
	b, slots := &l.send.window, &l.send.slots
	for b.marks.Len() > 0 && b.marks.front().with.completed(slots) {
		b.completed = b.marks.Pop().posted
	}
	switch {
	case b.timed.completed(slots):
		b.timed = 0
		b.adapt(l.since(b.since))
	case b.completed-b.recovered >= recovery:
		b.grow()
	}
}

// adapt sets the bound by how long a message took.
func (b *sendWindow) adapt(took time.Duration) {
	if b.fastest == 0 || took < b.fastest {
		b.fastest = took
	}
	if took > 2*b.fastest {
		b.limit = max(b.limit/2, min(MinWindow, b.most))
		b.recovered = b.completed
		return
	}
	b.grow()
}

func (b *sendWindow) grow() {
	b.limit = min(b.limit+Worthwhile, b.most)
	b.recovered = b.completed
}

// restart counts all that was posted as completed, for its send queue is gone.
func (b *sendWindow) restart() {
	b.completed, b.timed, b.marks = b.posted, 0, queue[postedMark]{}
}
