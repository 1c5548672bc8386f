//go:build linux

package shm

// The members of a group as a sender sees them: how it finds them, and has a lane to each.

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
	// maxMembers is how many members of a group a sender sends to. Others wait for one
	// of those to go.
	maxMembers = 256

	// membersWithin is how long the first datagrams to a group wait for a member that does
	// not answer.
	membersWithin = 250 * time.Millisecond

	// lookAgainAfter is after what time, at the earliest, a sender that sends tries to
	// reach a member again.
	lookAgainAfter = time.Second

	// lookPause is the least time between a look for members and the next, however often
	// somebody knocks. It is as long as lookAgainAfter if those who knock are never found.
	lookPause = 10 * time.Millisecond

	// maxKnocks is how many that have knocked a sender lets go before it looks. That answers
	// those, too, who wait behind them, or find the queue full, which is longer than that.
	maxKnocks = 64
)

// members is a sender's handle for a group. It implements [fabric.AddressHandle].
type members struct {
	d      *datagrams
	group  netip.AddrPort
	from   netip.AddrPort // what they are told of the sender
	bell   *socket        // where new ones knock
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex // guards what follows
	closed  bool
	known   map[string]bool // by name: those that have a lane, or are being reached
	lanes   []*handle
	closers map[uint32]*closer // by user, so that none is in others' way
	asked   map[uint32]bool    // about which users the application is being asked
	again   time.Time          // when to look for those who are without a lane; zero: all have one
	pause   time.Duration      // from one look to the next, where somebody knocks
}

// resolveGroup is Resolve for a group. Members that are there are reached before it
// returns, unless they keep it waiting.
func (d *datagrams) resolveGroup(ctx context.Context, group netip.AddrPort) (fabric.AddressHandle, error) {
	f := d.f.naming(senderName)
	bell, err := f.listenBy(f.unforeseen(group))
	if err != nil {
		return nil, err
	}
	m := &members{
		d:       d,
		group:   group,
		from:    d.local,
		bell:    bell,
		known:   make(map[string]bool),
		closers: make(map[uint32]*closer),
		asked:   make(map[uint32]bool),
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
	d.lanes.Go(m.answer)
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

// answer looks for members when somebody knocks who may be one, or send asks for it. It
// waits the longer between two looks the more knocks have been for nothing. Where too much
// is queued at the bell that cannot be closed (closer.go), there is send only.
func (m *members) answer() {
	for {
		var k knocks
		err := m.bell.wait(func(uintptr) bool {
			k = m.bell.letGo()
			return k.any
		})
		if err != nil || m.ctx.Err() != nil {
			return
		}
		if !k.any || m.heeds(k) {
			found, _, err := m.look(m.ctx)
			if len(found) > 0 || k.any {
				m.pace(len(found) > 0)
			}
			if err != nil {
				m.lookAgain()
			}
		}
		if m.bell.closer.admit() != nil {
			m.lookAgain()
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

// heeds says whether to look for those who have knocked. Strangers are looked for when the
// application has said that they may be reached.
func (m *members) heeds(k knocks) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	kin := false
	for uid := range k.users {
		if !isStranger(uid) {
			kin = true
		} else if !m.asked[uid] {
			m.ask(uid)
		}
	}
	return kin || k.more
}

// pace has answer look again soon, if somebody has been found, or later than before.
func (m *members) pace(found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found {
		m.pause = lookPause
	} else {
		m.pause = min(2*m.pause, lookAgainAfter)
	}
}

// knocks are connections that say nothing.
type knocks struct {
	any   bool            // there are some
	more  bool            // there may be others, for whom there was no room perhaps
	users map[uint32]bool // whose they are
}

// letGo closes the connections that wait at a listening socket, at most maxKnocks.
func (s *socket) letGo() knocks {
	k := knocks{users: make(map[uint32]bool)}
	for range maxKnocks {
		if s.closer.admit() != nil {
			return k
		}
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch err {
		case nil:
			k.any = true
			if c, err := pollSocket(fd, s.rights, s.closer); err == nil {
				if uid, err := c.peer(); err == nil {
					k.users[uid] = true
				}
				c.close()
			}
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

// look begins to reach the members that are there and have no lane. For each that is found
// there is a channel that is closed when it has got one, or gets none; for each user about
// whom the application is asked, one that is closed when that is so for all of the user's.
func (m *members) look(ctx context.Context) (found, asked []<-chan struct{}, err error) {
	listeners, err := m.listeners(ctx)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range listeners {
		switch {
		case !m.lacks(at):
		case !isStranger(at.owner):
			found = append(found, m.begin(at))
		case !m.asked[at.owner]:
			asked = append(asked, m.ask(at.owner))
		}
	}
	return found, asked, nil
}

// listeners are the sockets of members, whoever they are.
func (m *members) listeners(ctx context.Context) ([]bound, error) {
	return m.d.f.naming(memberName).toldAll(ctx, m.group)
}

// ask has a user's members reached, if the application says that they may be, which can
// take any time. Called with mu held.
func (m *members) ask(uid uint32) <-chan struct{} {
	m.asked[uid] = true
	over := make(chan struct{})
	m.d.lanes.Go(func() {
		defer close(over)
		verdict := m.d.f.judge(m.ctx, uid, true)
		m.mu.Lock()
		delete(m.asked, uid)
		m.mu.Unlock()
		if verdict != nil {
			return
		}
		found, err := m.lookFor(uid)
		m.pace(len(found) > 0)
		if err != nil {
			m.lookAgain()
		}
		for _, reached := range found {
			<-reached
		}
	})
	return over
}

// lookFor is look for one user, who may be reached.
func (m *members) lookFor(uid uint32) (found []<-chan struct{}, err error) {
	listeners, err := m.listeners(m.ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range listeners {
		if at.owner == uid && m.lacks(at) {
			found = append(found, m.begin(at))
		}
	}
	return found, nil
}

// lacks says whether a member is to be reached. Called with mu held.
func (m *members) lacks(at bound) bool {
	return !m.closed && len(m.known) < maxMembers && !m.known[at.name]
}

// begin begins to reach a member. Called with mu held.
func (m *members) begin(at bound) <-chan struct{} {
	m.known[at.name] = true
	if m.closers[at.owner] == nil {
		m.closers[at.owner] = newCloser()
	}
	c, reached := m.closers[at.owner], make(chan struct{})
	m.d.lanes.Go(func() { m.keep(at.name, c, reached) })
	return reached
}

// keep reaches a member, and has a lane to it until one of the two ends that.
func (m *members) keep(name string, c *closer, reached chan<- struct{}) {
	h, err := m.reach(name, c)
	if err == nil {
		m.add(h)
	}
	close(reached)
	if err == nil {
		h.watch()
	}
	m.remove(name, h)
}

// reach connects to the member whose socket has a name.
func (m *members) reach(name string, c *closer) (*handle, error) {
	s, err := m.d.f.newSocket(c)
	if err != nil {
		return nil, err
	}
	e := newEndpoint(m.d.f, s, m.from, m.group)
	e.at = name
	ctx, cancel := context.WithTimeout(m.ctx, enterWithin)
	defer cancel()
	return newHandle(ctx, e)
}

// add has a lane used.
func (m *members) add(h *handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		h.Close()
		return
	}
	m.lanes = append(m.lanes, h)
}

// remove forgets a member, which may have had a lane. It may be there and have no room
// for this sender, so it is looked for again.
func (m *members) remove(name string, h *handle) {
	m.mu.Lock()
	delete(m.known, name)
	m.lanes = slices.DeleteFunc(m.lanes, func(other *handle) bool { return other == h })
	m.mu.Unlock()
	m.lookAgain()
}

// lookAgain has send look for members before long.
func (m *members) lookAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.again.IsZero() {
		m.again = time.Now().Add(lookAgainAfter)
	}
}

// send sends a datagram to all members. What becomes of it at one of them is nothing to
// the others, so the sender is not told.
func (m *members) send(d *fabric.Datagram) fabric.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.lanes {
		h.send(d)
	}
	if !m.again.IsZero() && time.Now().After(m.again) {
		m.again = time.Time{}
		m.bell.wake()
	}
	return fabric.OK
}

// Close implements [fabric.AddressHandle]. What was sent stays there to be received.
func (m *members) Close() {
	m.mu.Lock()
	m.closed = true
	for _, h := range m.lanes {
		h.Close()
	}
	m.mu.Unlock()
	m.cancel()
	m.bell.wake() // for to close the bell may take for ever
	_ = m.bell.close()
}
