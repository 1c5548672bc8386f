//go:build linux

package shm

// Which source makes room for another, where there are too many or memory is short.
//
// Of those from which all has been received it is one that has been silent for longest: nothing is
// lost, and its sender may connect anew. But one process that sends more than is read could hold all
// places. So a sender makes room only for one of a user, or of a process of the same user, that has
// no more senders here, and if none is silent, one of those who have more makes room whatever it
// has sent.

import "slices"

// evict ends a source to make room for a new one, and returns it; if one has ended already but is
// not released yet, it returns that. If all that may be evicted have fewer bytes together than are
// missing, it ends none, returns nil, and makes Receive poll all sources: their senders may have
// sent without ringing. Called with mu held.
func (d *datagrams) evict(newcomer *source, missing int) *source {
	for {
		first, end, spare := d.victim(newcomer, missing)
		if first == nil || spare < missing {
			d.polled = slices.DeleteFunc(slices.Clone(d.sources), func(s *source) bool { return s.state == ended })
			d.notify()
			return nil
		}
		if end(first); first.state == ended {
			return first
		}
	}
}

// victim returns the source to evict for a new one, or nil, how to end it, and how many bytes all
// that may be evicted have. If bytes are missing, it returns one that has some. Called with mu held.
func (d *datagrams) victim(newcomer *source, missing int) (first *source, end func(*source), spare int) {
	all := slices.Concat(d.sources, d.entering)
	crowd := crowds(all, newcomer)
	own, best := crowd(newcomer), [3]int{}
	for _, s := range all {
		c := crowd(s)
		var rank [3]int // the source with the least is evicted first
		how := (*source).end
		switch {
		case s == newcomer, missing > 0 && s.memory.Bytes() == 0:
			continue
		case s.state == ended:
			rank = [3]int{0}
		case s.isSilent() && c >= own:
			rank = [3]int{1, -c, s.lastActivity}
			how = (*source).drain // ends it, unless something has arrived by then
		case c > own:
			rank = [3]int{2, -c, s.lastActivity}
		default:
			continue
		}
		spare += s.memory.Bytes()
		if first == nil || slices.Compare(rank[:], best[:]) < 0 {
			first, end, best = s, how, rank
		}
	}
	return first, end, spare
}

// crowds returns a function that returns how many sources the user of one has, and then its
// process, as a number by which these compare. A new source counts, too.
func crowds(all []*source, newcomer *source) func(*source) int {
	users, processes := make(map[uint32]int), make(map[int32]int)
	if !slices.Contains(all, newcomer) {
		all = append(all, newcomer)
	}
	for _, s := range all {
		users[s.sender.Uid]++
		processes[s.sender.Pid]++
	}
	return func(s *source) int { return users[s.sender.Uid]*2*maxSources + processes[s.sender.Pid] }
}

// isSilent reports whether a source has been admitted, and all that has arrived was received. Called
// with d.mu held.
func (s *source) isSilent() bool { return s.state == receiving && !s.arrived() }
