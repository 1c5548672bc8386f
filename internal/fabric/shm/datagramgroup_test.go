//go:build linux

package shm

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
)

// someGroup is one that nobody else uses.
func someGroup() netip.AddrPort {
	h := host.As4()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{239, h[1], h[2], h[3]}), uint16(10000+rand.N(50000)))
}

func (m mailbox) join(t *testing.T, group netip.AddrPort) {
	t.Helper()
	require.NoError(t, m.Join(ctx, group, netip.Addr{}))
}

func (m mailbox) resolveMembers(t *testing.T, group netip.AddrPort) *members {
	t.Helper()
	h, err := m.Resolve(ctx, group)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h.(*members)
}

// openGroup opens a sender to a group and a member.
func openGroup(t *testing.T) (a, b mailbox, h *members) {
	t.Helper()
	a, b = openMailboxes(t, 16)
	group := someGroup()
	b.join(t, group)
	h = a.resolveMembers(t, group)
	soon(t, "the member", func() { <-h.settled })
	require.Equal(t, 1, h.count())
	return a, b, h
}

// requireLanes requires that a sender has so many members before long, though it sends
// nothing.
func (m *members) requireLanes(t *testing.T, n int) {
	t.Helper()
	hang.Unless(t, func() bool { return m.count() == n })
}

func (m *members) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.lanes)
}

// postUntil sends datagrams to a group until done.
func (m mailbox) postUntil(t *testing.T, to *members, text string, done func() bool) {
	t.Helper()
	hang.Unless(t, func() bool {
		m.post(to, text)
		return done()
	})
}

// receives is whether there is a datagram.
func (m mailbox) receives() bool {
	return m.Receive([]fabric.Datagram{{}}) == 1
}

// namesOf counts the sockets of a group's members and senders.
func namesOf(t *testing.T, group netip.AddrPort) int {
	t.Helper()
	names, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	return strings.Count(string(names), ":"+group.String()+"\n")
}

// Package packettest tests groups of IPv4.
func TestGroupsOfIPv6(t *testing.T) {
	for _, group := range []string{"[ff02::7:1]:5555", "[ff02::7:2%lo]:5555"} {
		f, group := newFabric(t), netip.MustParseAddrPort(group)
		a := openMailbox(t, f, 16)
		a.join(t, group)
		h := a.resolveMembers(t, group)
		h.requireLanes(t, 1)
		require.Equal(t, fabric.OK, a.post(h, "to the group"))
		_, d := a.nextDatagram(t)
		require.Equal(t, fabric.Plain(group).Addr(), d.Via.To)
		require.Equal(t, fabric.OK, a.post(a.resolve(t, a), "to one"))
		_, d = a.nextDatagram(t)
		require.False(t, d.Via.To.IsValid())
	}
}

func TestGroupMembersAndSendersFindEachOtherAtOnce(t *testing.T) {
	f := newFabric(t)
	rounds := 20
	if soak {
		rounds = 500
	}
	for range rounds {
		group := someGroup()
		a, b := openMailbox(t, f, 1), openMailbox(t, f, 1)
		joined := make(chan error)
		go func() { joined <- b.Join(ctx, group, netip.Addr{}) }()
		h := a.resolveMembers(t, group)
		require.NoError(t, <-joined)
		h.requireLanes(t, 1)
		h.Close()
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// A group that is joined at several cards is left with the last.
func TestGroupIsJoinedOnceHoweverManyCards(t *testing.T) {
	f := newFabric(t)
	group := someGroup()
	a, b := openMailbox(t, f, 16), openMailbox(t, f, 16)
	one, other := host, netip.MustParseAddr("127.0.0.1")
	require.NoError(t, b.Join(ctx, group, one))
	require.NoError(t, b.Join(ctx, group, other))
	require.Equal(t, syscall.EADDRINUSE, b.Join(ctx, group, one))
	require.Equal(t, syscall.EADDRNOTAVAIL, b.Leave(group, netip.Addr{}))
	h := a.resolveMembers(t, group)
	a.delivers(t, h, "once", b)
	require.False(t, b.receives())

	require.NoError(t, b.Leave(group, one))
	require.Equal(t, syscall.EADDRNOTAVAIL, b.Leave(group, one))
	a.delivers(t, h, "still a member", b)
	require.NoError(t, b.Leave(group, other))
	require.Equal(t, fabric.OK, a.post(h, "nobody's"))
	require.False(t, b.receives())
	require.Equal(t, syscall.EADDRNOTAVAIL, b.Leave(group, other))

	b.join(t, group)
	h.requireLanes(t, 1)
	require.NoError(t, b.Close())
	require.Equal(t, net.ErrClosed, b.Join(ctx, group, one))
	require.Equal(t, syscall.EADDRNOTAVAIL, b.Leave(group, netip.Addr{}))
}

func TestGroupsNeedTheKernelsListOfSockets(t *testing.T) {
	f := newFabric(t).(*shm)
	f.noSocketLists = true
	a := openMailbox(t, f, 1)
	group := someGroup()
	require.ErrorIs(t, a.Join(ctx, group, netip.Addr{}), errors.ErrUnsupported)
	require.Equal(t, syscall.EADDRNOTAVAIL, a.Leave(group, netip.Addr{}))
	_, err := a.Resolve(ctx, group)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Zero(t, namesOf(t, group))
}

// A process that has a member's name and does not answer delays neither a sender's look for
// members nor its sends.
func TestGroupsPassOverMembersThatDoNotAnswer(t *testing.T) {
	f := newFabric(t).(*shm)
	group := someGroup()
	for _, kind := range []string{"idle", "full"} {
		p := start(t, program("squat", netip.AddrPortFrom(host, 1),
			kind, f.naming(memberName).randomName(group), f.naming(senderName).randomName(group)))
		require.Equal(t, "ready", p.line(t))
	}
	a, b := openMailbox(t, f, 16), openMailbox(t, f, 16)
	b.join(t, group)
	h := a.resolveMembers(t, group)
	h.requireLanes(t, 1)
	a.delivers(t, h, "hello", b)
	openMailbox(t, f, 1).join(t, group)
	h.requireLanes(t, 2)
}

func TestGroupMembersAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: two thousand descriptors take seconds to make")
	}
	needsDescriptors(t, 8*maxMembers)
	leavesNothing(t)
	f := newFabric(t)
	group := someGroup()
	a := openMailbox(t, f, 1)
	h := a.resolveMembers(t, group)
	var all []mailbox
	for range maxMembers {
		m := openMailbox(t, f, 1)
		m.join(t, group)
		all = append(all, m)
	}
	h.requireLanes(t, maxMembers)
	another := openMailbox(t, f, 1)
	another.join(t, group)
	_, err := h.look(ctx, ownUser())
	require.NoError(t, err)
	h.mu.Lock()
	known := len(h.known)
	h.mu.Unlock()
	require.Equal(t, maxMembers, known)
	for _, m := range all {
		a.delivers(t, h, "hello", m)
	}
	require.False(t, another.receives())
	require.NoError(t, all[0].Leave(group, netip.Addr{}))
	a.postUntil(t, h, "hello", another.receives)
}

// memberProgram joins a group, prints that it has, and prints what it receives.
func memberProgram(at netip.AddrPort, args []string) error {
	group := netip.MustParseAddrPort(args[0])
	f, err := New(Config{Trust: func(uint32) bool { return len(args) > 1 && args[1] == "trust" }})
	if err != nil {
		return err
	}
	m, err := newMailbox(f, at, 16)
	if err == nil {
		err = m.Join(ctx, group, netip.Addr{})
	}
	if err != nil {
		return err
	}
	fmt.Println("joined")
	p := make([]byte, datagramSize)
	for {
		m.Arm()
		for d := []fabric.Datagram{{Buffers: [][]byte{p}}}; m.Receive(d) == 1; {
			fmt.Println(string(p[:d[0].Len]))
		}
		<-m.news
	}
}

func TestGroupMemberIsKilled(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	leavesNothing(t)
	a, b, h := openGroup(t)
	a.delivers(t, h, "hello", b)
	names := namesOf(t, h.group)
	for range rounds {
		p := start(t, program("member", netip.AddrPortFrom(host, 0), h.group.String()))
		require.Equal(t, "joined", p.line(t))
		h.requireLanes(t, 2)
		require.Equal(t, fabric.OK, a.post(h, "hello"))
		require.Equal(t, "hello", p.line(t))
		require.Equal(t, "hello", b.next(t))
		killed := make(chan error, 1)
		go func() {
			time.Sleep(rand.N(5 * time.Millisecond))
			killed <- p.Process.Kill()
		}()
		for i := 0; i < 100 || h.count() > 1; i++ {
			a.delivers(t, h, strconv.Itoa(i), b)
		}
		require.NoError(t, <-killed)
		_ = p.Wait()
		require.Equal(t, names, namesOf(t, h.group))
	}
}

// A stopped member delays no other process. When it goes on, it receives as much as its queue
// had room for.
func TestGroupMemberIsStopped(t *testing.T) {
	a, b, h := openGroup(t)
	p := start(t, program("member", netip.AddrPortFrom(host, 0), h.group.String()))
	require.Equal(t, "joined", p.line(t))
	h.requireLanes(t, 2)
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	for i := range 1000 {
		a.delivers(t, h, strconv.Itoa(i), b)
	}
	require.NoError(t, p.Process.Signal(syscall.SIGCONT))
	for i := range 16 {
		require.Equal(t, strconv.Itoa(i), p.line(t))
	}
}

// Members and senders of different users find each other if both trust.
func TestGroupsOfUsers(t *testing.T) {
	needsRoot(t)
	own := func(uid uint32) bool { return uid == stranger }
	for name, test := range map[string]struct {
		trust  func(uint32) bool
		args   []string
		member bool // of the sender's
	}{
		"neither trusts":    {nil, nil, false},
		"the sender trusts": {own, nil, false},
		"the member trusts": {nil, []string{"trust"}, false},
		"both trust":        {own, []string{"trust"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := New(Config{Trust: test.trust})
			require.NoError(t, err)
			group := someGroup()
			early, late := openMailbox(t, f, 16), openMailbox(t, f, 16)
			before := early.resolveMembers(t, group)
			p := startAs(t, stranger, "member", netip.AddrPortFrom(host, 0), append([]string{group.String()}, test.args...)...)
			require.Equal(t, "joined", p.first)
			after := late.resolveMembers(t, group)
			own := openMailbox(t, f, 16)
			own.join(t, group)
			lanes, rounds := 1, 100
			if test.member {
				lanes, rounds = 2, 1
			}
			before.requireLanes(t, lanes)
			after.requireLanes(t, lanes)
			for range rounds {
				early.delivers(t, before, "hello", own)
				late.delivers(t, after, "hello", own)
			}
			if test.member {
				require.Equal(t, "hello", p.line(t))
				require.Equal(t, "hello", p.line(t))
				return
			}
			require.NoError(t, p.Process.Kill())
			heard, err := io.ReadAll(p.out)
			require.NoError(t, err)
			require.Empty(t, heard)
		})
	}
}

// knockProgram connects to the names that it is given, over and over.
func knockProgram(_ netip.AddrPort, names []string) error {
	fmt.Println("ready")
	for {
		for _, name := range names {
			if s, err := connectByName(name); err == nil {
				_, _ = unix.Write(s.fd, []byte("let me in"))
				s.close()
			}
		}
	}
}

// Strangers who knock and take names, as many as they like, keep no member from a group.
func TestGroupsReachMembersAmongStrangers(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	f := newFabric(t)
	group := someGroup()
	a := openMailbox(t, f, 16)
	h := a.resolveMembers(t, group)
	startAs(t, stranger, "knock", netip.AddrPortFrom(host, 1), senderOf(t, f, group))
	var names []string
	for range 2 * maxMembers {
		names = append(names, nameOf(memberName, 0, strconv.FormatUint(rand.Uint64(), 16), group))
	}
	startAs(t, stranger, "squat", netip.AddrPortFrom(host, 1), append([]string{"idle"}, names...)...)
	for i := range 10 {
		m := openMailbox(t, f, 16)
		m.join(t, group)
		h.requireLanes(t, i+1)
		a.delivers(t, h, "hello", m)
	}
}

// knockOnceProgram connects to a name so many times, each time until it is let go.
func knockOnceProgram(_ netip.AddrPort, args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for range n {
		if err := knockOnce(args[0]); err != nil {
			return err
		}
	}
	fmt.Println("done")
	return nil
}

func knockOnce(name string) error {
	s, err := connectByName(name)
	if err != nil {
		return err
	}
	defer s.close()
	if _, _, err := s.receive(ctx, make([]byte, 1), false); !errors.Is(err, io.EOF) {
		return fmt.Errorf("a sender answers: %w", err)
	}
	return nil
}

// senderOf is the name of the only sender to a group.
func senderOf(t *testing.T, f fabric.Fabric, group netip.AddrPort) string {
	t.Helper()
	senders, _, err := f.(*shm).naming(senderName).trustedListeners(ctx, group)
	require.NoError(t, err)
	require.Len(t, senders, 1)
	return senders[0]
}

// A sender does not look for members when strangers knock, which takes the longer the more
// sockets this host has.
func TestGroupKnocksOfStrangersCauseNoLook(t *testing.T) {
	needsRoot(t)
	f := newFabric(t)
	group := someGroup()
	h := openMailbox(t, f, 16).resolveMembers(t, group)
	b := openMailbox(t, f, 16)
	require.NoError(t, b.addCard(group, netip.Addr{})) // and does not knock
	p := startAs(t, stranger, "knock once", netip.AddrPortFrom(host, 1), senderOf(t, f, group), "20")
	require.Equal(t, "done", p.first)
	h.mu.Lock()
	known := len(h.known)
	h.mu.Unlock()
	require.Zero(t, known)
	require.NoError(t, b.knock(ctx, group))
	h.requireLanes(t, 1)
}

// If a process knocks again and again and no member is new, the sender looks less and less
// often, until it finds one.
func TestGroupKnocksInVainMakeLooksRarer(t *testing.T) {
	needsRoot(t)
	var looks atomic.Int64 // each asks about a stranger's member
	f, err := New(Config{Trust: func(uint32) bool {
		looks.Add(1)
		return false
	}})
	require.NoError(t, err)
	group := someGroup()
	startAs(t, stranger, "squat", netip.AddrPortFrom(host, 1), "idle", nameOf(memberName, stranger, "1", group))
	h := openMailbox(t, f, 16).resolveMembers(t, group)
	name := senderOf(t, f, group)
	before, began := looks.Load(), time.Now()
	for time.Since(began) < time.Second {
		require.NoError(t, knockOnce(name))
	}
	require.LessOrEqual(t, looks.Load()-before, int64(8+time.Since(began)/lookAgainAfter))
	openMailbox(t, f, 1).join(t, group)
	h.requireLanes(t, 1)
}

// Descriptors whose close blocks can only keep a sender from taking knocks: it finds members
// when it sends, and can be closed.
func TestGroupsReachMembersDespiteLingeringDescriptors(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	lenientToo(t, func(t *testing.T, f *shm) {
		group := someGroup()
		a, b := openMailbox(t, f, 16), openMailbox(t, f, 16)
		h := a.resolveMembers(t, group)
		startAs(t, stranger, "linger", netip.AddrPortFrom(host, 1), strconv.Itoa(2*(maxClosing+maxWaiting)), senderOf(t, f, group))
		b.join(t, group)
		a.postUntil(t, h, "hello", b.receives)
		h.Close()
		soon(t, "Close", func() { require.NoError(t, a.Close()) })
	})
}
