//go:build linux

// Names: other users can take any, and keep no listener or dialer from its own.

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/strangers"
)

// squatProgram holds the names that it is given, and says when it has them.
func squatProgram(_ netip.AddrPort, args []string) error {
	kind, names := args[0], args[1:]
	for _, name := range names {
		var err error
		switch kind {
		case "full": // a listener without room
			err = fullQueue(name)
		case "idle": // a listener that does nothing
			err = listenIdly(name, 64)
		case "connected":
			err = connectToItself(name)
		case "datagram":
			_, err = takeName(unix.SOCK_DGRAM, name)
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("ready")
	return untilKilled()
}

// takeName gives a name to a socket until this process ends.
func takeName(kind int, name string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrUnix{Name: name})
}

// listenIdly has a socket listen by a name until this process ends. Nobody is
// accepted.
func listenIdly(name string, backlog int) error {
	fd, err := takeName(unix.SOCK_SEQPACKET, name)
	return errors.Join(err, unix.Listen(fd, backlog))
}

// fullQueue does that with as many connections as there is room for.
func fullQueue(name string) error {
	err := listenIdly(name, 0)
	for err == nil {
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0); err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
		}
	}
	if err == unix.EAGAIN {
		return nil
	}
	return err
}

// connectToItself gives a name to a socket and connects that with a listener of
// this process.
func connectToItself(name string) error {
	peer := name + ":peer"
	fd, err := takeName(unix.SOCK_SEQPACKET, name)
	return errors.Join(err, listenIdly(peer, 64), unix.Connect(fd, &unix.SockaddrUnix{Name: peer}))
}

// crowdProgram listens idly by the names that it is given, and by many others.
func crowdProgram(_ netip.AddrPort, names []string) error {
	const many = 15_000
	for i := range many {
		names = append(names, fmt.Sprintf("@crowd-%d-%080d", os.Getpid(), i))
	}
	for _, name := range names {
		if err := listenIdly(name, 64); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	return untilKilled()
}

// squatDialersProgram holds all names of a user's dialers at an address.
func squatDialersProgram(at netip.AddrPort, _ []string) error {
	for port := firstEphemeral; port < 1<<16; port++ {
		a := netip.AddrPortFrom(at.Addr(), uint16(port))
		if _, err := takeName(unix.SOCK_SEQPACKET, nameOf(dialerName, 0, "", a)); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	return untilKilled()
}

// echoProgram listens at an address, says where that is, and accepts.
func echoProgram(at netip.AddrPort, args []string) error {
	f, err := New(Config{Trust: func(uint32) bool { return len(args) > 0 && args[0] == "trust" }})
	if err != nil {
		return err
	}
	l, err := f.Listen(at, 1)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		if e, err := accept(l, options); err == nil {
			e.Close()
		}
	}
}

// Users whom nobody trusts.
var stranger, another, third = strangers.ID(0), strangers.ID(1), strangers.ID(2)

// asStranger starts a program as one of them.
func asStranger(t *testing.T, name string, at netip.AddrPort, args ...string) *process {
	t.Helper()
	return startAs(t, stranger, name, at, args...)
}

// needsRoot is for tests that run programs as other users.
func needsRoot(t *testing.T) {
	t.Helper()
	strangers.Need(t)
}

// user is how to start a program as a user.
func user(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

// programAs prepares a program to be run as a user.
func programAs(t *testing.T, uid uint32, name string, at netip.AddrPort, args ...string) *exec.Cmd {
	t.Helper()
	needsRoot(t)
	cmd := program(name, at, args...)
	cmd.Path, cmd.Dir, cmd.SysProcAttr = strangers.Program(t), "/", user(uid)
	return cmd
}

// startAs starts a program as a user, and waits for the first line it prints.
func startAs(t *testing.T, uid uint32, name string, at netip.AddrPort, args ...string) *process {
	t.Helper()
	p := start(t, programAs(t, uid, name, at, args...))
	p.first = p.line(t)
	return p
}

// kernels runs a test on this kernel and on one that does not tell who has
// which name.
func kernels(t *testing.T, test func(t *testing.T, f *shm)) {
	for _, silent := range []bool{false, true} {
		t.Run(map[bool]string{false: "this kernel", true: "a silent kernel"}[silent], func(t *testing.T) {
			f := newFabric(t).(*shm)
			f.noSocketLists = silent
			test(t, f)
		})
	}
}

// place is an address whose port no other process on this machine is likely to
// use either, so that what covers it is free.
func place() netip.AddrPort { return netip.AddrPortFrom(host, uint16(10_000+os.Getpid()%30_000)) }

func TestListenerWhoseNameAnotherUserHas(t *testing.T) {
	leavesNothing(t)
	at := place()
	for _, kind := range []string{"full", "idle", "connected"} {
		t.Run(kind, func(t *testing.T) {
			asStranger(t, "squat", at, kind, plainName(at))
			kernels(t, func(t *testing.T, f *shm) { listenBesideAStranger(t, f, at) })
		})
	}
}

func listenBesideAStranger(t *testing.T, f *shm, at netip.AddrPort) {
	l, err := f.Listen(at, 1)
	if f.noSocketLists {
		require.ErrorIs(t, err, syscall.EACCES, "dialers could not find it")
		assert.NotErrorIs(t, err, syscall.EADDRINUSE, "but that is no reason for auto to fail")
		return
	}
	require.NoError(t, err)
	defer l.Close()
	requireAccepts(t, f, l)
	_, err = f.Listen(at, 1)
	assert.ErrorIs(t, err, syscall.EADDRINUSE, "whatever the first one is called")
	_, err = f.Listen(netip.AddrPortFrom(netip.Addr{}, at.Port()), 1)
	assert.ErrorIs(t, err, syscall.EADDRINUSE, "nor may an overlapping address be used")
}

// However many sockets another user has opened besides, none of them that the
// kernel lists is left out.
func TestListenerIsFoundAmongAnotherUsersManySockets(t *testing.T) {
	leavesNothing(t)
	at := place()
	asStranger(t, "crowd", at, plainName(at))
	f := newFabric(t).(*shm)
	for range 8 { // each time by another name
		l, err := f.Listen(at, 1)
		require.NoError(t, err)
		go acceptAll(l)
		e, err := dial(f, at, options)
		if assert.NoError(t, err) {
			e.Close()
		}
		require.NoError(t, l.Close())
	}
}

// A dial of an address without a listener fails at once, although another user has the
// listener's name, and a queue that stays full. If the kernel does not tell whose the
// name is, the dialer can only try again.
func TestDialersAreNotDelayedByAnotherUsersFullQueue(t *testing.T) {
	leavesNothing(t)
	at := place()
	var names []string
	for _, a := range covering(at) {
		names = append(names, plainName(a))
	}
	asStranger(t, "squat", at, append([]string{"full"}, names...)...)
	kernels(t, func(t *testing.T, f *shm) {
		ep, err := f.Dial(ctx, netip.AddrPort{}, at)
		e := ready(t, ep, err)
		soon(t, "Connect", func() {
			_, err := e.Connect(ctx, nil)
			if f.noSocketLists {
				assert.True(t, isFull(err), "%v", err)
				return
			}
			assert.ErrorIs(t, err, syscall.EACCES)
			assert.ErrorContains(t, err, fmt.Sprintf("user ID is %d, ours 0", stranger))
		})
	})
}

// Text that lists sockets, a line for each, says what their names want it to.
func TestNamesOfSocketsForgeNothing(t *testing.T) {
	leavesNothing(t)
	at := place()
	asStranger(t, "squat", at, "datagram",
		"@x\n0: 00000002 00000000 00010000 0005 01 9 "+plainName(at),
		plainName(netip.AddrPortFrom(netip.Addr{}, at.Port())))
	kernels(t, func(t *testing.T, f *shm) {
		for _, a := range covering(at) {
			l, err := f.Listen(a, 1)
			require.NoError(t, err)
			require.NoError(t, l.Close())
		}
		_, err := dial(f, at, options)
		assert.Equal(t, fabric.RejectNoListener, reason(t, err))
	})
}

func TestDialersNeedNoNames(t *testing.T) {
	leavesNothing(t)
	asStranger(t, "squat dialers", netip.AddrPortFrom(host, 1))
	kernels(t, func(t *testing.T, f *shm) {
		l := listen(t, f, 1)
		soon(t, "a dialer", func() {
			a, b := connectTo(t, f, l, options)
			assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
		ep, err := f.Dial(ctx, netip.AddrPortFrom(host, 50_000), l.Addr())
		require.NoError(t, err, "nor does one that has its port chosen")
		require.NoError(t, ep.Close())
	})
}

// A dialer keeps its port when it has connected, and when it has met a stranger
// before.
func TestDialersHaveTheirPortsAlone(t *testing.T) {
	leavesNothing(t)
	at := place()
	from := netip.AddrPortFrom(host, 50_000)
	for _, stranger := range []bool{false, true} {
		if stranger {
			asStranger(t, "squat", at, "idle", plainName(at))
		}
		lenientToo(t, func(t *testing.T, f *shm) {
			l, err := f.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()), 1)
			require.NoError(t, err)
			defer l.Close()
			go acceptAll(l)
			e, err := dialFrom(f, from, at, options)
			require.NoError(t, err)
			defer e.Close()
			_, err = f.Dial(ctx, from, at)
			assert.ErrorIs(t, err, syscall.EADDRINUSE)
		})
	}
}

func TestListenerIsItsUsersOnlyOneAtAnAddress(t *testing.T) {
	leavesNothing(t)
	try := func(t *testing.T, f *shm, a netip.AddrPort) {
		for range 100 {
			var all sync.WaitGroup
			listeners := make(chan fabric.Listener, 8)
			for range cap(listeners) {
				all.Go(func() {
					l, err := f.Listen(a, 1)
					if err == nil {
						listeners <- l
					} else if !f.noSocketLists {
						// A silent kernel cannot tell who is about to listen.
						assert.ErrorIs(t, err, syscall.EADDRINUSE)
					}
				})
			}
			all.Wait()
			close(listeners)
			assert.LessOrEqual(t, len(listeners), 1)
			for l := range listeners {
				_, err := f.Listen(a, 1)
				assert.ErrorIs(t, err, syscall.EADDRINUSE)
				require.NoError(t, l.Close())
			}
		}
	}
	kernels(t, func(t *testing.T, f *shm) { try(t, f, place()) })
	t.Run("by a name of its own", func(t *testing.T) {
		a := place()
		asStranger(t, "squat", a, "full", plainName(a))
		try(t, newFabric(t).(*shm), a)
	})
}

// acceptAll accepts until the listener is closed.
func acceptAll(l fabric.Listener) {
	for {
		e, err := accept(l, options)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			e.Close()
		}
	}
}

// Users may listen at one address without knowing of each other. If another user has a listener's
// name, its dialers look for the name that it took instead, and do not connect to root's.
func TestDialersPreferTheirOwnUsersListenerThenRoots(t *testing.T) {
	leavesNothing(t)
	f, err := New(Config{Trust: func(uint32) bool { return true }})
	require.NoError(t, err)
	dialAs := func(uid uint32, args ...string) string {
		said, err := asUser(t, place(), user(uid), args...)
		assert.NoError(t, err, said)
		return said
	}
	its := fmt.Sprintln(stranger)
	for _, taken := range []bool{false, true} {
		if taken {
			startAs(t, third, "squat", place(), "idle", nameOf(listenerName, stranger, "", place()))
		}
		l, err := f.Listen(place(), 16)
		require.NoError(t, err)
		defer l.Close()
		go acceptAll(l)
		p := startAs(t, stranger, "echo", place(), "trust")
		assert.Equal(t, its, dialAs(stranger))
		if !taken {
			assert.Equal(t, "0\n", dialAs(0, "trust"))
			assert.Equal(t, "0\n", dialAs(another))
			assert.Equal(t, "0\n", dialAs(another, "trust"))
		}
		require.NoError(t, l.Close())
		if !taken {
			assert.Equal(t, its, dialAs(another, "trust"))
			assert.Equal(t, its, dialAs(0, "trust"))
		}
		require.NoError(t, p.Process.Kill())
		_ = p.Wait()
	}
}

// A listener that has no room now is to be asked again, not exchanged for another's.
func TestDialersKeepToTheListenerThatTheyPrefer(t *testing.T) {
	leavesNothing(t)
	startAs(t, 0, "squat", place(), "full", plainName(place()))
	startAs(t, stranger, "echo", place(), "trust")
	kernels(t, func(t *testing.T, f *shm) {
		f.config.Trust = func(uint32) bool { return true }
		ep, err := f.Dial(ctx, netip.AddrPort{}, place())
		e := ready(t, ep, err)
		_, err = e.Connect(ctx, nil)
		assert.True(t, isFull(err), "%v", err)
	})
}

// A list of sockets that is not complete may lack the listener.
func TestLookupNeedsTheKernelsWholeAnswer(t *testing.T) {
	over, cancel := context.WithCancel(ctx)
	cancel()
	names, passed, err := newFabric(t).(*shm).trustedListeners(over, place())
	assert.Empty(t, names)
	assert.NoError(t, passed)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestLookupChecksTheKernelsAnswerToItsEnd(t *testing.T) {
	for name, attributes := range map[string][]byte{
		"none":                   {},
		"half of one":            {8, 0, diagUID},
		"one without a length":   {0, 0, diagUID, 0, 0, 0, 0, 0},
		"one longer than it is":  {9, 0, diagUID, 0, 0, 0, 0, 0},
		"one that is not enough": {6, 0, diagUID, 0, 0, 0, 0, 0},
		"others":                 {8, 0, 99, 0, 0, 0, 0, 0},
	} {
		_, err := readSocket(append(make([]byte, sizeofDiagMsg), attributes...))
		assert.ErrorIs(t, err, errNoOwners, name)
	}
	_, err := readSocket(make([]byte, sizeofDiagMsg-1))
	assert.Error(t, err)
}
