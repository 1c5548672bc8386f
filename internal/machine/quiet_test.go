package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The staging memory shrinks while bytes in it wait for the peer's receives. They leave later, with nothing that is
// signaled, and nothing else is sent: their memory is given back all the same.
func TestStagingMemoryThatIsLeftLaterIsGivenBack(t *testing.T) {
	w := newWorld(make(pool), 0, false, [2][]op{})
	a, b := w.ends[0], w.ends[1]
	s := a.streams[0].s
	w.settle()
	a.m.growStaging()
	a.carryOut()
	require.Len(t, a.m.send.staging.areas, 2)
	for range 5 { // one more than the peer has receives for
		a.streams[0].script = []op{{write, 100}}
		w.do(step{act, 0, 0})
	}
	require.Equal(t, 100, s.Unsent())
	for range 4 {
		w.now = later(w.now, a.m.NextAlarm())
		w.do(step{tick, 0, 0})
	}
	w.settle()
	b.streams[0].script = []op{{read, 0}}
	w.do(step{act, 1, 0})
	w.settle()
	require.Zero(t, s.Unsent())
	for range 4 {
		w.now = later(w.now, a.m.NextAlarm())
		w.do(step{tick, 0, 0})
		w.settle()
	}
	require.Len(t, a.m.send.staging.areas, 1, "%v", a.m)
}

// settle has everything arrive and be polled.
func (w *world) settle() {
	for more := true; more; {
		more = false
		for _, s := range w.steps(nil) {
			if s.what == deliver || s.what == poll {
				w.do(s)
				more = true
				break
			}
		}
	}
}
