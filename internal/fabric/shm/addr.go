//go:build linux

package shm

// Addresses, and the abstract socket names that stand for them. A name contains
// the user ID, so that users do not compete: two of them may listen at one
// address, and each dialer prefers its own user's listener to root's, and that to
// one of another user whom it trusts.
//
// Any process may take any name, so a name proves nothing. A listener whose name
// another user has taken takes a random one; dialers find it where the kernel
// tells which user has which name (lookup.go). Listeners' names differ from
// dialers', so no dialer's port keeps a listener from its own. The kernel forgets
// a name when its last socket is closed, or the socket's process dies. Names
// belong to a network namespace, as ports do.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	ourNames     = "@ringnet-shm:"
	listenerName = ourNames + "l:"
	dialerName   = ourNames + "d:"

	// firstEphemeral begins the range for dynamic ports (RFC 6335, section 6).
	firstEphemeral = 49152
	ephemeral      = 1<<16 - firstEphemeral
)

// both is the address in the names of listeners at all addresses of both families.
const both = "*"

// nameOf returns the name of an address for a user, with both for the zero Addr.
// The plain name, which dialers try, has an empty tag.
func nameOf(prefix string, uid uint32, tag string, a netip.AddrPort) string {
	address := a.String()
	if !a.Addr().IsValid() {
		address = both + ":" + strconv.Itoa(int(a.Port()))
	}
	return prefix + strconv.FormatUint(uint64(uid), 10) + ":" + tag + ":" + address
}

// listenerAddr returns the address that a listener's name stands for, of any user.
func (f *shm) listenerAddr(name string) (netip.AddrPort, bool) {
	fields := strings.SplitN(strings.TrimPrefix(name, listenerName), ":", 3)
	if !strings.HasPrefix(name, listenerName) || len(fields) < 3 {
		return netip.AddrPort{}, false
	}
	if port, ok := strings.CutPrefix(fields[2], both+":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		return netip.AddrPortFrom(netip.Addr{}, uint16(n)), err == nil
	}
	a, err := netip.ParseAddrPort(fields[2])
	return a, err == nil
}

// covering returns the addresses whose listeners accept connections to a, a itself
// first.
func covering(a netip.AddrPort) []netip.AddrPort {
	family := netip.IPv6Unspecified()
	if a.Addr().Is4() {
		family = netip.IPv4Unspecified()
	}
	return []netip.AddrPort{a, netip.AddrPortFrom(family, a.Port()), netip.AddrPortFrom(netip.Addr{}, a.Port())}
}

// covers reports whether a listener at l accepts connections to a.
func covers(l, a netip.AddrPort) bool {
	return slices.Contains(covering(a), l)
}

// listenAt returns a socket that listens at an address, and the address with the
// port, which is chosen if it was 0.
func (f *shm) listenAt(a netip.AddrPort) (*socket, netip.AddrPort, error) {
	if a.Port() != 0 {
		s, err := f.listenAtExactly(a)
		return s, a, err
	}
	first := rand.IntN(ephemeral)
	for i := range ephemeral {
		a = netip.AddrPortFrom(a.Addr(), uint16(firstEphemeral+(first+i)%ephemeral))
		s, err := f.listenAtExactly(a)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return s, a, err
		}
	}
	return nil, a, os.NewSyscallError("bind", syscall.EADDRINUSE)
}

// listenAtExactly returns EADDRINUSE if this user listens at an address that
// overlaps with a already. Other users may listen at any.
func (f *shm) listenAtExactly(a netip.AddrPort) (*socket, error) {
	if err := f.checkVacant(a, ""); err != nil {
		return nil, err
	}
	name := nameOf(listenerName, ownUser(), "", a)
	s, err := f.listenBy(name)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := f.checkForeign(name); err != nil {
			return nil, err
		}
		name = f.randomName(a)
		s, err = f.listenBy(name)
	}
	if err != nil {
		return nil, err
	}
	// Of two listeners that began at the same time at least one finds the other now.
	if err := f.checkVacant(a, name); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// randomName returns a random name of an address, which no other process can have taken.
func (f *shm) randomName(a netip.AddrPort) string {
	return nameOf(listenerName, ownUser(), strconv.FormatUint(rand.Uint64(), 16), a)
}

// listenBy returns a socket that listens by a name.
func (f *shm) listenBy(name string) (*socket, error) {
	s, err := f.newSocket(newCloser())
	if err != nil {
		return nil, err
	}
	err = s.bind(name)
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(s.fd, socketBacklog))
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// checkVacant returns EADDRINUSE if this user listens, by another name than the
// given one, at an address that overlaps with a. Where the kernel does not tell, it
// returns nil.
func (f *shm) checkVacant(a netip.AddrPort, name string) error {
	taken, _ := f.ownsSocket(listening, func(other string) bool {
		o, ok := f.listenerAddr(other)
		return ok && other != name && (covers(o, a) || covers(a, o))
	})
	if taken {
		return os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	return nil
}

// checkForeign returns EADDRINUSE if this user listens by a name that is in use, or
// is about to. Otherwise it returns nil, for dialers find a listener by another
// name; or EACCES if the kernel does not tell, for then they do not.
func (f *shm) checkForeign(name string) error {
	taken, err := f.ownsSocket(listening|unconnected, func(other string) bool { return other == name })
	if err != nil {
		taken, err = f.isOwnListener(name)
	}
	switch {
	case err != nil:
		return fmt.Errorf("bind: the name of this address is in use, by another user perhaps: %w: %v", syscall.EACCES, err)
	case taken:
		return os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	return nil
}

// nameDialer gives a dialer's socket a name, and returns the dialer's address
// with the port, which is chosen if it was 0. The name only keeps two dialers of
// this user from having the same port: if all that it tries are taken, the socket
// stays without.
func (f *shm) nameDialer(s *socket, a netip.AddrPort) (netip.AddrPort, error) {
	if a.Port() != 0 {
		return a, f.nameDialerExactly(s, a)
	}
	const tries = 64
	for range tries {
		a = netip.AddrPortFrom(a.Addr(), uint16(firstEphemeral+rand.IntN(ephemeral)))
		if err := s.bindDialer(a); err == nil {
			break
		}
	}
	return a, nil
}

// nameDialerExactly returns EADDRINUSE if this user dials from the very address,
// or listens there.
func (f *shm) nameDialerExactly(s *socket, a netip.AddrPort) error {
	taken, _ := f.ownsSocket(listening, func(name string) bool {
		o, ok := f.listenerAddr(name)
		return ok && o == a
	})
	if taken {
		return os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	err := s.bindDialer(a)
	if errors.Is(err, syscall.EADDRINUSE) {
		name := nameOf(dialerName, ownUser(), "", a)
		taken, _ := f.ownsSocket(unconnected|paired, func(other string) bool { return other == name })
		if !taken {
			return nil
		}
	}
	return err
}

// bindDialer gives the socket the name of a dialer of this user.
func (s *socket) bindDialer(a netip.AddrPort) error {
	return s.bind(nameOf(dialerName, ownUser(), "", a))
}

// plainNames returns the plain names of users' listeners that accept connections to
// an address.
func (f *shm) plainNames(to netip.AddrPort, users ...uint32) (names []namedSocket) {
	for _, uid := range users {
		for _, a := range covering(to) {
			names = append(names, namedSocket{name: nameOf(listenerName, uid, "", a), owner: uid})
		}
	}
	return names
}

// trustedListeners returns all trusted listeners that accept connections
// to an address, the best first. untrusted is why another is not trusted, if there is
// one; err is an error of sockets.
func (f *shm) trustedListeners(ctx context.Context, to netip.AddrPort) (trusted []namedSocket, untrusted, err error) {
	sockets, err := f.findListeners(ctx, to)
	judged := f.judgeOwners(ctx, sockets)
	for _, s := range sockets {
		if err := judged[s.owner]; err != nil {
			untrusted = err
			continue
		}
		trusted = append(trusted, s)
	}
	return trusted, untrusted, err
}

// judgeOwners judges the users whose sockets they are, all at the same time, so that what
// Config.Trust returns about the others is known even if one call does not return before ctx
// ends. It judges each user once, however many sockets the user has.
func (f *shm) judgeOwners(ctx context.Context, sockets []namedSocket) map[uint32]error {
	judged := make(map[uint32]error)
	for _, s := range sockets {
		judged[s.owner] = nil
	}
	var mu sync.Mutex // guards judged
	var judging sync.WaitGroup
	for _, uid := range slices.Collect(maps.Keys(judged)) {
		judging.Go(func() {
			err := f.judge(ctx, uid, true)
			mu.Lock()
			defer mu.Unlock()
			judged[uid] = err
		})
	}
	judging.Wait()
	return judged
}

// findListeners returns the sockets of the listeners of all users, trusted or not, that accept
// connections to an address, those that a dialer prefers first.
func (f *shm) findListeners(ctx context.Context, to netip.AddrPort) (found []namedSocket, err error) {
	addrs := covering(to)
	sockets, err := f.sockets(ctx, listening)
	place := func(s namedSocket) int {
		if a, ok := f.listenerAddr(s.name); ok {
			return slices.Index(addrs, a)
		}
		return -1
	}
	for _, s := range sockets {
		if place(s) >= 0 {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b namedSocket) int {
		return cmp.Or(rank(a.owner)-rank(b.owner), place(a)-place(b))
	})
	return found, err
}

// rank orders listeners' users as a dialer prefers them: its own, root, others.
func rank(uid uint32) int {
	switch uid {
	case ownUser():
		return 0
	case 0:
		return 1
	}
	return 2
}
