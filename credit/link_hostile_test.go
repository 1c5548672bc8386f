package credit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostileLink is a side of a link whose peer says whatever it likes. It finds a
// breach, and the link is over, or keeps sound books.
type hostileLink struct {
	*linkRules
	believes linkKind // mutants: what it does not check, if not anything
}

type hostileLinkState struct {
	ledger Link
	over   bool
}

// resumption is, beside the kinds of messages, that the queue pair breaks and the
// peer says what it has received.
const (
	resumption = linkKinds + iota
	anything
)

// hostileLinkAction is a message of this side's or of its peer's.
type hostileLinkAction struct {
	peer  bool
	kind  linkKind
	acked Totals // of the peer's
}

func (a hostileLinkAction) String() string {
	if !a.peer {
		return fmt.Sprintf("sends %v", a.kind)
	}
	if a.kind == resumption {
		return fmt.Sprintf("resumes with %+v received", a.acked)
	}
	return fmt.Sprintf("hears %v %+v", a.kind, a.acked)
}

func (w hostileLink) start() *hostileLinkState { return &hostileLinkState{ledger: w.ledger()} }

func (w hostileLink) rest(*hostileLinkState) error { return nil }

func (w hostileLink) choices(s *hostileLinkState, found func(act hostileLinkAction, progress bool)) {
	if s.over {
		return
	}
	may := [linkKinds]bool{s.ledger.MaySendData(), s.ledger.MaySendRecords(), s.ledger.CreditDue()}
	for kind, ok := range may {
		if ok {
			found(hostileLinkAction{kind: linkKind(kind)}, true)
		}
	}
	found(hostileLinkAction{peer: true, kind: dataMessage}, true)
	for data := range uint64(w.data + 2) {
		for records := range w.records + 2 {
			// What is acknowledged already counts as 0: one less runs backwards.
			for _, kind := range []linkKind{recordSend, linkCredit, resumption} {
				found(hostileLinkAction{true, kind, Totals{data - 1, records - 1}}, true)
			}
		}
	}
}

func (w hostileLink) do(s *hostileLinkState, act hostileLinkAction) error {
	l := &s.ledger
	var err error
	switch {
	case !act.peer && act.kind == dataMessage:
		l.SendData()
	case !act.peer && act.kind == recordSend:
		l.SendRecords()
	case !act.peer:
		l.SendCredit()
	case act.kind == dataMessage:
		err = l.ReceiveData()
	case act.kind == recordSend:
		err = l.ReceiveRecords(act.acked)
	case act.kind == resumption:
		err = l.Resume(act.acked)
	default:
		err = l.ReceiveCredit(act.acked)
	}
	switch {
	case err == nil:
	case act.kind != w.believes:
		*s = hostileLinkState{ledger: w.ledger(), over: true}
		return nil
	case act.kind == dataMessage:
		l.reposted.Data++
	default:
		l.acked = act.acked
	}
	return w.sound(l)
}

func (w hostileLink) sound(l *Link) error {
	var none Link
	none.sent, none.acked = l.reposted, l.told // of the direction that is received
	none.rebase(&Link{})
	l.reposted, l.told = none.sent, none.acked
	l.rebase(&Link{})
	switch {
	case l.sent.Data > l.window || l.sent.Records > l.recordWindow:
		return errors.New("more was sent than granted")
	case l.reposted.Data > l.receives || l.reposted.Records > l.recordWindow:
		return errors.New("more was received than granted")
	}
	return nil
}

func (w hostileLink) code(s *hostileLinkState, c *codec) {
	if c.reading {
		*s = *w.start()
	}
	flags(c, &s.over)
	s.ledger.code(c)
}

// TestLinkKeepsSoundBooksWithALiar has the peer send and acknowledge anything.
func TestLinkKeepsSoundBooksWithALiar(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  size
		rules *linkRules
	}{
		{"D 4, W 1, T 1", small, linkWorld(4, 1, 1)},
		{"D 8, W 2, T 2", medium, linkWorld(8, 2, 2)},
		{"D 4, the windows of the product", medium, linkWorld(4, RecordWindow, RecordCredit)},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.size.skip(t)
			f := breadthFirst(hostileLink{c.rules, anything}, 1_000_000)
			t.Log(f)
			require.NoError(t, f.broken, "after %v", f.trace)
			assert.True(t, f.complete)
		})
	}
}

func TestLinkThatBelievesALiarIsFound(t *testing.T) {
	for kind, want := range map[linkKind]string{
		dataMessage: "more was received than granted",
		recordSend:  "more was sent than granted",
		linkCredit:  "more was sent than granted",
		resumption:  "more was sent than granted",
	} {
		f := breadthFirst(hostileLink{linkWorld(4, 1, 1), kind}, 1_000_000)
		require.EqualError(t, f.broken, want)
		require.NotEmpty(t, f.trace)
	}
}
