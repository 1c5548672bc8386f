//go:build linux

package shm

// The sender's side of a group: how it finds the members, and keeps a lane to each.

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

const (
	// maxMembers is how many members of a group a sender sends to at a time. It reaches
	// others when some of those have gone.
	maxMembers = 256

	// membersWithin is how long Resolve, and with it the first datagrams to a group, waits
	// for members that do not answer.
	membersWithin = 250 * time.Millisecond

	// lookAgainAfter is the least time until a sender, when it sends, looks again for
	// members that it has not reached.
	lookAgainAfter = time.Second

	// lookPause is the least time between two looks for members, however often members
	// knock. It doubles, up to lookAgainAfter, while knocks lead to no new member.
	lookPause = 10 * time.Millisecond

	// maxKnocks is how many knocks a sender takes before it looks. That look is for those
	// still in the queue, too, and for those that find the queue, which is longer, full.
	maxKnocks = 64
)

// members is a sender's handle for a group. It implements [fabric.AddressHandle].
type members struct {
	d      *datagrams
	group  netip.AddrPort
	from   netip.AddrPort // the sender's address, for the members
	bell   *socket        // listens for the knocks of new members
	ctx    context.Context
	cancel context.CancelFunc

	settled chan struct{} // closed by settle once all has been judged and reached that Resolve has found
	settle  func()

	mu        sync.Mutex // guards what follows
	closed    bool
	known     map[string]bool // by name: those that have a lane, or are being reached
	lanes     []*handle
	judging   map[uint32]bool // users about whom judgeMembersOf waits for Config.Trust
	underWay  int             // how much is being judged and reached
	lookAfter time.Time       // from when on send makes lookLoop look; zero: not at all
	pause     time.Duration   // of lookLoop after each look
}

// resolveGroup is Resolve for a group. It waits until the members that there are have been
// reached, but not longer than membersWithin.
func (d *datagrams) resolveGroup(ctx context.Context, group netip.AddrPort) (fabric.AddressHandle, error) {
	f := d.f.naming(senderName)
	bell, err := f.listenBy(f.randomName(group))
	if err != nil {
		return nil, err
	}
	m := &members{
		d:        d,
		group:    group,
		from:     d.local,
		bell:     bell,
		settled:  make(chan struct{}),
		known:    make(map[string]bool),
		judging:  make(map[uint32]bool),
		underWay: 1, // this look
		pause:    lookPause,
	}
	if m.from.Addr().IsUnspecified() {
		m.from = netip.AddrPortFrom(fabric.Loopback(group.Addr()), d.local.Port())
	}
	m.settle = sync.OnceFunc(func() { close(m.settled) })
	m.ctx, m.cancel = context.WithCancel(d.ctx)
	if _, err := m.look(ctx, ownUser()); err != nil {
		m.Close()
		return nil, err
	}
	m.end()
	d.goroutines.Go(m.lookLoop)
	select {
	case <-m.settled:
	case <-time.After(membersWithin):
	case <-ctx.Done():
	}
	return m, nil
}

// lookLoop is the goroutine that looks for members when a possible member knocks, or send
// wakes it. The more knocks have led to none, the longer it pauses between two looks. While
// the bell's closer is held up (closer.go) it takes no knocks, and only send makes it look.
func (m *members) lookLoop() {
	for {
		var k knocks
		err := m.bell.sleeper.Sleep(func(uintptr) bool {
			k = m.bell.takeKnocks()
			return k.any
		})
		if err != nil || m.ctx.Err() != nil {
			return
		}
		if !k.any || m.judgeKnocks(k) {
			if found, _ := m.look(m.ctx, ownUser()); found || k.any {
				m.adjustPause(found)
			}
		}
		m.mu.Lock()
		if m.bell.closer.admit() != nil {
			m.scheduleLook()
		}
		pause := m.pause
		m.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-m.ctx.Done():
		}
	}
}

// judgeKnocks reports whether to look for members now, after knocks. For users about whom
// Config.Trust decides it starts judgeMembersOf, which looks for theirs if they are trusted.
func (m *members) judgeKnocks(k knocks) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	trusted := false
	for uid := range k.users {
		if isStranger(uid) {
			m.judgeMembersOf(uid)
		} else {
			trusted = true
		}
	}
	return trusted || k.more
}

// adjustPause resets lookLoop's pause if a look has found members, or else doubles it, up to
// lookAgainAfter.
func (m *members) adjustPause(found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found {
		m.pause = lookPause
	} else {
		m.pause = min(2*m.pause, lookAgainAfter)
	}
}

// knocks are connections to the bell, on which nothing is sent.
type knocks struct {
	any   bool            // there were some
	more  bool            // others may be queued, or have found the queue full
	users map[uint32]bool // user IDs of those that have knocked
}

// takeKnocks accepts and closes the connections queued at a listening socket, at most
// maxKnocks.
func (s *socket) takeKnocks() knocks {
	k := knocks{users: make(map[uint32]bool)}
	for range maxKnocks {
		if s.closer.admit() != nil {
			return k
		}
		fd, err := s.accept()
		switch err {
		case nil:
			k.any = true
			if c, err := credentials(fd); err == nil {
				k.users[c.Uid] = true
			}
			s.closeAccepted(fd)
		case unix.EAGAIN:
			return k
		case unix.EINTR, unix.ECONNABORTED:
		default:
			k.any, k.more = true, true
			return k
		}
	}
	k.any, k.more = true, true
	return k
}

// look begins to reach the members that have no lane: those of a user, who is trusted, or, if that
// is this process's own, those of all users. It reports whether there were any that it need not
// judge first.
func (m *members) look(ctx context.Context, uid uint32) (found bool, err error) {
	listeners, err := m.d.f.naming(memberName).findListeners(ctx, m.group)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.scheduleLook()
	}
	all := uid == ownUser()
	for _, at := range listeners {
		switch {
		case m.known[at.name] || m.closed || len(m.known) >= maxMembers:
		case at.owner == uid, all && !isStranger(at.owner):
			found = true
			m.known[at.name] = true
			m.underWay++
			m.d.goroutines.Go(func() { m.keepLane(at) })
		case all:
			m.judgeMembersOf(at.owner)
		}
	}
	return found, err
}

// judgeMembersOf starts a goroutine that judges a user, unless there is one, which can take
// Config.Trust any time, and reaches the user's members if it is trusted. Called with mu held.
func (m *members) judgeMembersOf(uid uint32) {
	if m.judging[uid] {
		return
	}
	m.judging[uid] = true
	m.underWay++
	m.d.goroutines.Go(func() {
		defer m.end()
		verdict := m.d.f.judge(m.ctx, uid, true)
		m.mu.Lock()
		delete(m.judging, uid)
		m.mu.Unlock()
		if verdict == nil {
			found, _ := m.look(m.ctx, uid)
			m.adjustPause(found)
		}
	})
}

// end is called when something that underWay counts has ended.
func (m *members) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.underWay--; m.underWay == 0 {
		m.settle()
	}
}

// keepLane reaches a member, or fails to, and has a lane to the member until one of the two ends it.
func (m *members) keepLane(at namedSocket) {
	h, err := m.reach(at)
	if err == nil {
		m.add(h)
	}
	m.end()
	if err == nil {
		h.watch()
	}
	m.remove(at.name, h)
}

// reach connects to the member with a socket. It tries again while the member has no
// room.
func (m *members) reach(at namedSocket) (h *handle, err error) {
	ctx, cancel := context.WithTimeout(m.ctx, enterWithin)
	defer cancel()
	err = fabric.Patiently(ctx, func() error {
		s, err := m.d.f.newSocket(closer{at.owner})
		if err != nil {
			return err
		}
		e := newEndpoint(m.d.f, s, m.from, m.group)
		e.socketName = at.name
		h, err = newHandle(ctx, e)
		return err
	})
	return h, err
}

// add makes send use a lane, or closes the lane if m is closed.
func (m *members) add(h *handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		h.Close()
		return
	}
	m.lanes = append(m.lanes, h)
}

// remove forgets a member and its lane, if h is not nil. The member may be there and have
// had no room for this sender, so send has it looked for again.
func (m *members) remove(name string, h *handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, name)
	m.lanes = slices.DeleteFunc(m.lanes, func(other *handle) bool { return other == h })
	m.scheduleLook()
}

// scheduleLook lets send wake lookLoop once lookAgainAfter has passed. Called with mu held.
func (m *members) scheduleLook() {
	if m.lookAfter.IsZero() {
		m.lookAfter = time.Now().Add(lookAgainAfter)
	}
}

// send sends a datagram to all members. Its status is OK whatever becomes of the datagram at
// any of them.
func (m *members) send(d *fabric.Datagram) fabric.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.lanes {
		h.send(d)
	}
	if !m.lookAfter.IsZero() && time.Now().After(m.lookAfter) {
		m.lookAfter = time.Time{}
		m.bell.sleeper.Wake()
	}
	return fabric.OK
}

// Close implements [fabric.AddressHandle]. Members still receive what was sent.
func (m *members) Close() {
	m.mu.Lock()
	m.closed = true
	for _, h := range m.lanes {
		h.Close()
	}
	m.mu.Unlock()
	m.cancel()
	m.bell.sleeper.Wake() // ends lookLoop, even if closing the bell takes for ever
	_ = m.bell.close()
}
