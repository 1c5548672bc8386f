package link

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
)

// trim frees the slabs in which nothing is, and staging memory that is of no use, and returns how many bytes. It
// releases mu meanwhile.
func (l *Link) trim() (freed int) {
	rings := l.m.Rings()
	for l.m.Stage() == machine.Up {
		memory, size := l.m.TakeStaging()
		if memory == nil {
			break
		}
		l.free(memory) // the peer does not write there, so each fabric can
		l.memory.account.Release(size)
		freed += size
	}
	for l.m.Stage() == machine.Up {
		s := rings.TakeEmpty()
		if s == nil {
			break
		}
		if !l.free(s.Memory.(fabric.Memory)) {
			rings.Keep(s)
			continue
		}
		rings.Freed(s)
		l.memory.account.Release(s.Size())
		freed += s.Size()
	}
	return freed
}

// freeUnneeded frees at once what the link does not need, all of it if it carries nothing, and
// returns how many bytes it has freed or will free.
func (l *Link) freeUnneeded() int {
	l.lock()
	defer l.unlock()
	if l.m.GoAwayUnneeded() {
		return l.memory.account.Bytes()
	}
	if l.m.Stage() != machine.Up {
		return 0
	}
	return l.m.Shrink() + l.trim()
}

// reclaim has links free what they do not need, and returns how many bytes they have freed
// or will free. It takes each link's lock.
func reclaim(links []*Link) (freed int) {
	for _, l := range links {
		freed += l.freeUnneeded()
	}
	return freed
}

// within are the links of a budget.
func within(b *budget.Budget) []*Link {
	return slices.DeleteFunc(allLinks(), func(l *Link) bool { return l.cfg.Budget != b })
}

// holders are the links that have the memory that the link lacks, by the error for that: the
// link itself if it has reached its own limit, else all of its budget.
func (l *Link) holders(err error) []*Link {
	var shortage *budget.ShortageError
	if errors.As(err, &shortage) && shortage.Of == budget.LinkMemory {
		return []*Link{l}
	}
	return within(l.cfg.Budget)
}

// reclaimOn has holders free memory if err is a shortage, and notes in err whether that will
// pass. Called with no link's lock held.
func reclaimOn(err error, holders []*Link) error {
	var shortage *budget.ShortageError
	if errors.As(err, &shortage) {
		shortage.Releasing = reclaim(holders) > 0
	}
	return err
}

// reclaiming is set while reclaimInBackground is under way.
var reclaiming atomic.Bool

// reclaimInBackground is reclaim in a goroutine, for callers that hold a link's lock.
func reclaimInBackground(links []*Link) {
	if reclaiming.CompareAndSwap(false, true) {
		go func() {
			defer reclaiming.Store(false)
			reclaim(links)
		}()
	}
}
