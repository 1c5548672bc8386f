package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
)

// While no conversation tells how long a message takes, what bulk may have under way grows again by bytes.
func TestBulkThatWasHeldBackHasMoreUnderWayAgain(t *testing.T) {
	l := windowed(MinWindow, 2*MinWindow)
	w := &l.send.window
	carry := func(bytes int) {
		for range bytes / MinWindow {
			w.posted += MinWindow
			id := l.send.slots.Post()
			l.send.slots.Signal()
			l.windowSignaled(sent(id+1), false)
			l.send.slots.Complete(id)
			l.windowCompleted()
		}
	}
	carry(recovery - MinWindow)
	require.Equal(t, MinWindow, w.limit)
	carry(MinWindow)
	require.Equal(t, MinWindow+Worthwhile, w.limit)
	carry(10 * recovery)
	require.Equal(t, 2*MinWindow, w.limit, "the staging memory has no more")
}

// Without bulk beside it, one message in so many of a conversation is timed, for the first may have been slow.
func TestAConversationIsTimedNowAndThen(t *testing.T) {
	l := windowed(MinWindow, MinWindow)
	timed := 0
	for range 10 * timeOneIn {
		id, times := l.send.slots.Post(), l.send.window.toTime()
		l.send.slots.Signal()
		l.windowSignaled(sent(id+1), times)
		if times {
			timed++
			l.at = l.at.Add(time.Millisecond) // it takes so long
		}
		l.send.slots.Complete(id)
		l.windowCompleted()
	}
	require.Equal(t, 10, timed)
}

// windowed is a link with a bound for bulk.
func windowed(limit, most int) *Link {
	return &Link{
		at:   time.Unix(1, 0),
		send: sendQueue{slots: credit.NewSlots(credit.LinkControlSends+6, credit.LinkControlSends), window: sendWindow{limit: limit, most: most}},
	}
}
