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

	mu        sync.Mutex // guards what follows
	closed    bool
	known     map[string]bool // by name: those that have a lane, or are being reached
	lanes     []*handle
	judging   map[uint32]bool // users about whom judgeMembersOf waits for Config.Trust
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
		d:       d,
		group:   group,
		from:    d.local,
		bell:    bell,
		known:   make(map[string]bool),
		judging: make(map[uint32]bool),
		pause:   lookPause,
	}
	if m.from.Addr().IsUnspecified() {
		m.from = netip.AddrPortFrom(fabric.Loopback(group.Addr()), d.local.Port())
	}
	m.ctx, m.cancel = context.WithCancel(d.ctx)
	found, asked, err := m.look(ctx)
	if err != nil {
		m.Close()
		return nil, err
	}
	d.goroutines.Go(m.lookLoop)
	late := time.After(membersWithin)
	for _, reached := range slices.Concat(found, asked) {
		select {
		case <-reached:
		case <-late:
			return m, nil
		case <-ctx.Done():
			return m, nil
		}
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
			found, _, err := m.look(m.ctx)
			if len(found) > 0 || k.any {
				m.adjustPause(len(found) > 0)
			}
			if err != nil {
				m.scheduleLook()
			}
		}
		if m.bell.closer.admit() != nil {
			m.scheduleLook()
		}
		m.mu.Lock()
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
		if !isStranger(uid) {
			trusted = true
		} else if !m.judging[uid] {
			m.judgeMembersOf(uid)
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

// look begins to reach the members that have no lane. found has a channel for each, which is
// closed once the member has been reached or that has failed; asked has one for each user
// about whom Config.Trust decides, closed once that is so for all of the user's members.
func (m *members) look(ctx context.Context) (found, asked []<-chan struct{}, err error) {
	listeners, err := m.listeners(ctx)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range listeners {
		switch {
		case !m.needsLane(at):
		case !isStranger(at.owner):
			found = append(found, m.startLane(at))
		case !m.judging[at.owner]:
			asked = append(asked, m.judgeMembersOf(at.owner))
		}
	}
	return found, asked, nil
}

// listeners returns the sockets of the group's members, of all users.
func (m *members) listeners(ctx context.Context) ([]namedSocket, error) {
	return m.d.f.naming(memberName).findListeners(ctx, m.group)
}

// judgeMembersOf starts a goroutine that judges a user, which can take Config.Trust any time,
// and reaches the user's members if it is trusted. It closes the channel at its end. Called
// with mu held.
func (m *members) judgeMembersOf(uid uint32) <-chan struct{} {
	m.judging[uid] = true
	over := make(chan struct{})
	m.d.goroutines.Go(func() {
		defer close(over)
		verdict := m.d.f.judge(m.ctx, uid, true)
		m.mu.Lock()
		delete(m.judging, uid)
		m.mu.Unlock()
		if verdict != nil {
			return
		}
		found, err := m.lookFor(uid)
		m.adjustPause(len(found) > 0)
		if err != nil {
			m.scheduleLook()
		}
		for _, reached := range found {
			<-reached
		}
	})
	return over
}

// lookFor is look for the members of one user, who is trusted.
func (m *members) lookFor(uid uint32) (found []<-chan struct{}, err error) {
	listeners, err := m.listeners(m.ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range listeners {
		if at.owner == uid && m.needsLane(at) {
			found = append(found, m.startLane(at))
		}
	}
	return found, nil
}

// needsLane reports whether a member has no lane and may get one. Called with mu held.
func (m *members) needsLane(at namedSocket) bool {
	return !m.closed && len(m.known) < maxMembers && !m.known[at.name]
}

// startLane starts the goroutine of a member, keepLane, which closes the channel. Called with
// mu held.
func (m *members) startLane(at namedSocket) <-chan struct{} {
	m.known[at.name] = true
	reached := make(chan struct{})
	m.d.goroutines.Go(func() { m.keepLane(at, reached) })
	return reached
}

// keepLane reaches a member, or fails to, closes reached, and has a lane to the member until
// one of the two ends it.
func (m *members) keepLane(at namedSocket, reached chan<- struct{}) {
	h, err := m.reach(at)
	if err == nil {
		m.add(h)
	}
	close(reached)
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
	delete(m.known, name)
	m.lanes = slices.DeleteFunc(m.lanes, func(other *handle) bool { return other == h })
	m.mu.Unlock()
	m.scheduleLook()
}

// scheduleLook lets send wake lookLoop once lookAgainAfter has passed.
func (m *members) scheduleLook() {
	m.mu.Lock()
	defer m.mu.Unlock()
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
