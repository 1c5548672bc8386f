package machine

// MinWindow is how many bytes of bulk may always be under way before a message of another
// stream: one message of the largest size.
const MinWindow = maxMessage

// sendWindow bounds how many bytes of streams that send without an answer are under way, for in
// one queue pair no message overtakes another. To use all of the bandwidth takes as many
// bytes as travel in a round trip. More do no harm to a link that carries nothing else, but
// delay the messages of conversations: so beside those it is MinWindow, and else all of the staging memory.
type sendWindow struct {
	most      int               // bytes of the staging memory that has grown
	posted    uint64            // bytes of bulk
	completed uint64            // of those, known to be through
	marks     queue[postedMark] // the signaled work requests under way
	alone     uint64            // posted, from which on bulk counts as alone
}

// postedMark is a work request, with all bytes that are posted by then.
type postedMark struct {
	with   sent
	posted uint64
}

// besides is how many bytes of bulk are posted behind a message of a conversation before they count as alone: at 100
// Gb/s they take 5 ms.
const besides = 64 << 20

func (b *sendWindow) underWay() int { return int(b.posted - b.completed) }

// limit is how many bytes may be under way.
func (b *sendWindow) limit() int {
	if b.posted < b.alone {
		return min(MinWindow, b.most)
	}
	return b.most
}

// unsignaled is how many bytes may be under way without a completion to come: beside conversations half a message, for
// there the window is about as long as the way.
func (b *sendWindow) unsignaled() int {
	if b.posted < b.alone {
		return Worthwhile / 2
	}
	return b.most / 4
}

// maySend reports whether n bytes more may be posted. If no work request under way is signaled
// they may, since no completion would come to wait for.
func (b *sendWindow) maySend(n int) bool {
	return b.underWay()+n <= b.limit() || b.marks.Len() == 0
}

// conversed notes a message of a conversation.
func (b *sendWindow) conversed() { b.alone = b.posted + besides }

// signaled notes a signaled work request, behind all that is posted.
func (b *sendWindow) signaled(n sent) { b.marks.push(postedMark{n, b.posted}) }

// windowCompleted notes what has completed.
func (l *Link) windowCompleted() {
	b := &l.send.window
	for b.marks.Len() > 0 && b.marks.front().with.completed(&l.send.slots) {
		b.completed = b.marks.Pop().posted
	}
}

// restart counts all that was posted as completed, for its send queue is gone.
func (b *sendWindow) restart() { b.completed, b.marks = b.posted, queue[postedMark]{} }
