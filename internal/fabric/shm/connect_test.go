//go:build linux

// How connections come about, fail to, and end.

package shm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/strangers"
)

func reason(t testing.TB, err error) int {
	t.Helper()
	var r *fabric.RejectError
	require.ErrorAs(t, err, &r)
	return r.Reason
}

func ready(t testing.TB, ep fabric.Endpoint, err error) end {
	t.Helper()
	require.NoError(t, err)
	e, err := open(ep, options)
	require.NoError(t, err)
	t.Cleanup(func() { ep.Close() })
	return e
}

// dialing is an open endpoint for a listener's address.
func dialing(t testing.TB, f fabric.Fabric, l fabric.Listener) end {
	t.Helper()
	ep, err := f.Dial(ctx, netip.AddrPort{}, l.Addr())
	return ready(t, ep, err)
}

// connecting runs Connect in the background.
func connecting(e end) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := e.Connect(ctx, nil)
		done <- err
	}()
	return done
}

// A dial of a port without a listener, or with one of TCP only, makes no memory.
func TestDialThatIsRefusedMakesNothing(t *testing.T) {
	leavesNothing(t)
	f := newFabric(t)
	before := left(t)
	ep, err := f.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(host, 1))
	require.NoError(t, err)
	defer ep.Close()
	const size = 64 << 20
	_, err = ep.Open(with(size))
	require.NoError(t, err)
	faults := minorFaults(t)
	_, err = ep.Register(size, fabric.RemoteWrite)
	require.NoError(t, err)
	_, err = ep.Connect(ctx, nil)
	assert.Equal(t, fabric.RejectNoListener, reason(t, err))
	assert.Less(t, minorFaults(t)-faults, size/os.Getpagesize()/10)
	assert.Equal(t, before[1], left(t)[1], "mappings of memory to share")
}

// minorFaults counts the pages that this process has touched for the first time.
func minorFaults(t *testing.T) int {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return int(usage.Minflt)
}

func TestListenerThatCannotMakeTheMemoryReportsIt(t *testing.T) {
	inProcess(t, nil, func() {
		const size, most = 64 << 20, 1 << 20
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: most, Max: most}))
		f := newFabric(t)
		_, _, err := connectEnds(f, listen(t, f, 1), with(size), with(size))
		assert.Equal(t, reasonUnsupported, reason(t, err))
		assert.ErrorContains(t, err, "file too large")
	})
}

func TestDialerCloseFreesItsPort(t *testing.T) {
	leavesNothing(t)
	lenientToo(t, func(t *testing.T, f *shm) {
		l := listen(t, f, 1)
		from := netip.AddrPortFrom(host, 40_000)
		go acceptAll(l)
		for range 100 {
			a, err := dialFrom(f, from, l.Addr(), options)
			require.NoError(t, err)
			require.NoError(t, a.Close())
			ep, err := f.Dial(ctx, from, l.Addr())
			require.NoError(t, err)
			require.NoError(t, ep.Close(), "not connected")
		}
	})
}

func TestAddresses(t *testing.T) {
	leavesNothing(t)
	f := newFabric(t)
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	port := listen(t, f, 1).Addr().Port()
	tryListen := func(a netip.Addr) error {
		l, err := f.Listen(netip.AddrPortFrom(a, port), 1)
		if err == nil {
			require.NoError(t, l.Close())
		}
		return err
	}
	other := host.Next()
	assert.ErrorIs(t, tryListen(host), syscall.EADDRINUSE)
	assert.ErrorIs(t, tryListen(netip.AddrFrom16(host.As16())), syscall.EADDRINUSE)
	assert.NoError(t, tryListen(other))
	assert.NoError(t, tryListen(any6))

	for _, a := range []netip.Addr{any4, any6, {}} {
		l, err := f.Listen(netip.AddrPortFrom(a, 0), 1)
		require.NoError(t, err)
		port = l.Addr().Port()
		require.NotZero(t, port)
		assert.Equal(t, a.IsValid(), l.Addr().Addr() == a)
		for _, b := range []netip.Addr{host, any4, any6, {}, netip.IPv6Loopback()} {
			same := !a.IsValid() || !b.IsValid() || a.Is4() == b.Is4()
			assert.Equal(t, same, tryListen(b) != nil, "%v beside %v", b, a)
		}
		require.NoError(t, l.Close())
	}

	dialFrom := func(local netip.AddrPort, remote netip.AddrPort) (fabric.Endpoint, error) {
		ep, err := f.Dial(ctx, local, remote)
		if err == nil {
			t.Cleanup(func() { ep.Close() })
		}
		return ep, err
	}
	l := listen(t, f, 1)
	_, err := dialFrom(l.Addr(), l.Addr())
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	e, err := dialFrom(netip.AddrPortFrom(other, 0), l.Addr())
	require.NoError(t, err)
	_, err = dialFrom(e.LocalAddr(), l.Addr())
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = dialFrom(netip.AddrPort{}, netip.AddrPortFrom(host, 0))
	assert.ErrorIs(t, err, syscall.EINVAL)
	e, err = dialFrom(netip.AddrPort{}, netip.MustParseAddrPort("0.0.0.0:9"))
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddrPort("127.0.0.1:9"), e.RemoteAddr())
}

// dialProgram makes a connection, as another user perhaps, and says whom with
// or how it went.
func dialProgram(at netip.AddrPort, args []string) error {
	f, err := New(Config{Trust: func(uint32) bool { return len(args) > 0 && args[0] == "trust" }})
	if err != nil {
		return err
	}
	e, err := dial(f, at, options)
	if err != nil {
		return err
	}
	uid, err := e.sock.peer()
	fmt.Println(uid)
	return errors.Join(err, e.Close())
}

// asUser runs a dialer as another user, and returns what it has to say.
func asUser(t *testing.T, at netip.AddrPort, attr *syscall.SysProcAttr, args ...string) (string, error) {
	t.Helper()
	cmd := program("dial", at, args...)
	cmd.Path = strangers.Program(t)
	cmd.SysProcAttr = attr
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		skip(t, "cannot run as that user: %v", err)
	}
	return string(out), err
}

func TestUsers(t *testing.T) {
	needsRoot(t)
	them := func(uid uint32) bool { return uid == stranger }
	anyoneElse := func(uid uint32) bool { return uid != stranger }
	anyone := func(uint32) bool { return true }
	// The mapped user is the same to the kernel, whatever it is called.
	namespace := func(inside int) *syscall.SysProcAttr {
		attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		if inside >= 0 {
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: inside, HostID: 0, Size: 1}}
			attr.Credential = &syscall.Credential{Uid: uint32(inside), NoSetGroups: true}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		}
		return attr
	}
	notTrusted := fmt.Sprintf("peer's user ID is 0, and it does not trust ours, %d", stranger)
	for name, test := range map[string]struct {
		trust func(uint32) bool
		attr  *syscall.SysProcAttr
		args  []string
		says  string // of the dialer; "" means that it connects
	}{
		"the same":                           {nil, nil, nil, ""},
		"another":                            {nil, user(stranger), nil, notTrusted},
		"another that trusts":                {nil, user(stranger), []string{"trust"}, notTrusted},
		"another that is not trusted":        {anyoneElse, user(stranger), nil, notTrusted},
		"another that is trusted":            {them, user(stranger), nil, ""},
		"nobody":                             {anyone, user(OverflowUID()), nil, "user 65534 may be anyone"},
		"in a namespace of its own":          {nil, namespace(0), nil, ""},
		"in a namespace, by another name":    {nil, namespace(1000), nil, ""},
		"in a namespace where nobody has ID": {nil, namespace(-1), nil, "user 65534 may be anyone"},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			f, err := New(Config{Trust: test.trust})
			require.NoError(t, err)
			l := listen(t, f, 1)
			var accepting sync.WaitGroup
			accepting.Go(func() { acceptAll(l) })
			said, err := asUser(t, l.Addr(), test.attr, test.args...)
			if test.says == "" {
				assert.NoError(t, err, said)
			} else {
				assert.Error(t, err)
				assert.Contains(t, said, test.says)
			}
			require.NoError(t, l.Close())
			accepting.Wait()
		})
	}
}

// undecided returns a fabric whose Config.Trust does not return until decide is closed, and
// then trusts, and a channel that shows that it has been called.
func undecided(t *testing.T) (f fabric.Fabric, asked, decide chan struct{}) {
	t.Helper()
	needsRoot(t)
	asked, decide = make(chan struct{}, 1), make(chan struct{})
	f, err := New(Config{Trust: func(uint32) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-decide
		return true
	}})
	require.NoError(t, err)
	return f, asked, decide
}

// If Config.Trust takes long to judge a user, because it asks a directory for example,
// only that user waits.
func TestTrustThatIsSlowDelaysNoOtherUser(t *testing.T) {
	f, asked, decide := undecided(t)
	leavesNothing(t)
	defer close(decide)
	l := listen(t, f, 1)
	start(t, programAs(t, stranger, "dial", l.Addr()))
	soon(t, "the question", func() { <-asked })
	requireAccepts(t, f, l)
	soon(t, "Close", func() { require.NoError(t, l.Close()) })
}

// A user about whom Config.Trust does not return takes one place, however often it connects,
// and all its connections wait for that call.
func TestTrustIsCalledOncePerUserAtATime(t *testing.T) {
	silent, trusted := stranger, another
	synctest.Test(t, func(t *testing.T) {
		judge, asked := make(chan struct{}), 0
		f := &shm{judging: newVerdicts(), config: Config{Trust: func(uid uint32) bool {
			if uid == silent {
				asked++
				<-judge
			}
			return true
		}}}
		waiting := make(chan error)
		for range 2 * maxJudging {
			go func() { waiting <- f.judge(t.Context(), silent, true) }()
		}
		synctest.Wait()
		require.NoError(t, f.judge(t.Context(), trusted, true))

		over, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		errs := f.judgeOwners(over, []namedSocket{{owner: silent}, {owner: trusted}})
		require.ErrorIs(t, errs[silent], context.DeadlineExceeded)
		require.NoError(t, errs[trusted])

		close(judge)
		for range 2 * maxJudging {
			require.NoError(t, <-waiting)
		}
		require.Equal(t, 1, asked)
	})
}
