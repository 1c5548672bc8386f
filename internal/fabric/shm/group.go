//go:build linux

package shm

// Groups: section 12.4 of docs/protocol.md. What is sent to a group goes to each of its
// members by a lane of its own, so no member is in another's way, or the sender's.
//
// Members and senders find each other by the names of their sockets, which the kernel
// knows and forgets with their processes. Each takes its name first and then looks for
// the others: a new sender connects to the members, and a new member knocks at the
// senders, who look again. So whichever comes second finds the other.

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
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

// Join implements [fabric.DatagramEndpoint]. Cards are all the same here: to join a group
// at a second one changes nothing until it is left at the first.
func (d *datagrams) Join(ctx context.Context, group netip.AddrPort, card netip.Addr) error {
	group = fabric.Plain(group)
	if err := d.enroll(group, card); err != nil {
		return err
	}
	if err := d.knock(ctx, group); err != nil {
		_ = d.Leave(group, card)
		return err
	}
	return nil
}

// enroll makes the queue pair a member of a group, if it is none.
func (d *datagrams) enroll(group netip.AddrPort, card netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inlets == nil {
		return net.ErrClosed
	}
	if in := d.inletOf(group); in != nil {
		if slices.Contains(in.cards, card) {
			return syscall.EADDRINUSE
		}
		in.cards = append(in.cards, card)
		return nil
	}
	f := d.f.naming(memberName)
	s, err := f.listenBy(f.unforeseen(group))
	if err != nil {
		return err
	}
	d.open(&inlet{listener: f.newListener(s, group, maxSilent), group: group, cards: []netip.Addr{card}})
	return nil
}

// inletOf is that of a group, or nil. Called with mu held.
func (d *datagrams) inletOf(group netip.AddrPort) *inlet {
	for _, in := range d.inlets {
		if in.group == group {
			return in
		}
	}
	return nil
}

// knock has all senders to a group look for members. One whose queue of those who knock
// is full has to look yet anyway.
func (d *datagrams) knock(ctx context.Context, group netip.AddrPort) error {
	senders, _, err := d.f.naming(senderName).told(ctx, group)
	if err != nil {
		return err
	}
	for _, s := range senders[:min(len(senders), maxSources)] {
		if _, err := listenerUser(s.name); exhausted(err) {
			return err
		}
	}
	return nil
}

// Leave implements [fabric.DatagramEndpoint].
func (d *datagrams) Leave(group netip.AddrPort, card netip.Addr) error {
	in, left := d.strike(fabric.Plain(group), card)
	if !left {
		return syscall.EADDRNOTAVAIL
	}
	if in == nil {
		return nil
	}
	return in.listener.Close()
}

// strike takes a card out of a group, and with the last the group's inlet, which it
// returns, and its sources.
func (d *datagrams) strike(group netip.AddrPort, card netip.Addr) (in *inlet, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in = d.inletOf(group)
	if in == nil || !slices.Contains(in.cards, card) {
		return nil, false
	}
	in.cards = slices.DeleteFunc(in.cards, func(c netip.Addr) bool { return c == card })
	if len(in.cards) > 0 {
		return nil, true
	}
	d.inlets = slices.DeleteFunc(d.inlets, func(other *inlet) bool { return other == in })
	for _, s := range d.sources {
		if s.in == in {
			s.end()
		}
	}
	return in, true
}

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
	again   time.Time          // when to look for those who are without a lane; zero: all have one
}

// resolveGroup is Resolve for a group. Members that are there are reached before it
// returns, unless they keep it waiting.
func (d *datagrams) resolveGroup(ctx context.Context, group netip.AddrPort) (fabric.AddressHandle, error) {
	f := d.f.naming(senderName)
	bell, err := f.listenBy(f.unforeseen(group))
	if err != nil {
		return nil, err
	}
	m := &members{d: d, group: group, from: d.local, bell: bell, known: make(map[string]bool), closers: make(map[uint32]*closer)}
	if m.from.Addr().IsUnspecified() {
		m.from = netip.AddrPortFrom(fabric.Loopback(group.Addr()), d.local.Port())
	}
	m.ctx, m.cancel = context.WithCancel(d.ctx)
	found, err := m.look(ctx)
	if err != nil {
		m.Close()
		return nil, err
	}
	d.lanes.Go(m.answer)
	late := time.After(membersWithin)
	for _, reached := range found {
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
	for pause := lookPause; ; {
		var k knocks
		err := m.bell.wait(func(uintptr) bool {
			k = m.bell.letGo()
			return k.any
		})
		if err != nil || m.ctx.Err() != nil {
			return
		}
		if !k.any || m.heeds(k) {
			found, err := m.look(m.ctx)
			switch {
			case len(found) > 0:
				pause = lookPause
			case k.any:
				pause = min(2*pause, lookAgainAfter)
			}
			if err != nil {
				m.lookAgain()
			}
		}
		if m.bell.closer.admit() != nil {
			m.lookAgain()
		}
		select {
		case <-time.After(pause):
		case <-m.ctx.Done():
		}
	}
}

// heeds says whether there may be somebody among those who have knocked with whom to
// connect.
func (m *members) heeds(k knocks) bool {
	if k.more {
		return true
	}
	for uid := range k.users {
		if m.d.f.judge(uid, true) == nil {
			return true
		}
	}
	return false
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

// look begins to reach the members that are there and have no lane. For each there is a
// channel that is closed when it has got one, or gets none.
func (m *members) look(ctx context.Context) (found []<-chan struct{}, err error) {
	listeners, _, err := m.d.f.naming(memberName).told(ctx, m.group)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range listeners {
		if m.closed || len(m.known) == maxMembers {
			break
		}
		if m.known[at.name] {
			continue
		}
		m.known[at.name] = true
		if m.closers[at.owner] == nil {
			m.closers[at.owner] = newCloser()
		}
		c, reached := m.closers[at.owner], make(chan struct{})
		m.d.lanes.Go(func() { m.keep(at.name, c, reached) })
		found = append(found, reached)
	}
	return found, nil
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
