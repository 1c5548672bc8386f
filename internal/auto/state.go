package auto

// How far the dial of one address is.

import (
	"slices"
	"sync/atomic"
)

// state is how far an attempt is. docs/auto.md describes each. A network that fails before it
// has answered does not change it: the next one is asked, and after the last one TCP.
type state uint32

const (
	asking   state = iota // no network has answered
	proving               // one has: TCP connects from the proof's port, or its end is awaited
	proven                // the dialer takes the link
	refused               // the proof's TCP connection carries the traffic
	unsure                // the listener may have closed that connection: a new one carries the traffic
	late                  // no network has answered in time: the attempt takes no link any more
	canceled              // the dial has ended: whoever still makes the link closes everything
)

// follows has the states that may follow each.
var follows = map[state][]state{
	asking:  {proving, late, canceled},
	proving: {proven, refused, unsure, canceled},
}

// progress is the state that an attempt is in now.
type progress struct{ atomic.Uint32 }

// move moves on to another state, if that may follow, and returns whether it did.
func (p *progress) move(to state) bool {
	for {
		from := p.Load()
		if !slices.Contains(follows[state(from)], to) {
			return false
		}
		if p.CompareAndSwap(from, uint32(to)) {
			return true
		}
	}
}

func (p *progress) is(s state) bool { return state(p.Load()) == s }
