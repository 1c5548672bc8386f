package ringnet

import (
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// elsewhere is a thread in a network namespace of its own. It calls the functions that it is sent.
type elsewhere struct {
	t     *testing.T
	calls chan func()
}

// do calls f on the thread.
func (e elsewhere) do(f func()) {
	done := make(chan bool, 1)
	e.calls <- func() {
		returned := false
		defer func() { done <- returned }() // not if f has failed the test, which ends the thread
		f()
		returned = true
	}
	if !<-done {
		e.t.FailNow()
	}
}

// newElsewhere returns a thread in a new network namespace with some addresses.
func newElsewhere(t *testing.T, addresses ...string) elsewhere {
	e := elsewhere{t, make(chan func())}
	t.Cleanup(func() { close(e.calls) })
	go func() {
		runtime.LockOSThread() // which ends the thread with the goroutine
		for f := range e.calls {
			f()
		}
	}()
	e.do(func() {
		require.NoError(t, syscall.Unshare(syscall.CLONE_NEWNET))
		addAddresses(t, addresses...)
	})
	return e
}

// addAddresses gives some addresses to the namespace of the calling thread.
func addAddresses(t *testing.T, addresses ...string) {
	commands := []string{"ip link set lo up"}
	for _, a := range addresses {
		command := "ip address add " + a + " dev lo"
		if strings.Contains(a, ":") {
			command += " nodad" // the kernel clears an address for use in the background
		}
		commands = append(commands, command)
	}
	for _, command := range commands {
		words := strings.Fields(command)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
}

// inNamespaceOf runs the rest of a test in a process and a network namespace of its own, where auto
// waits for shm however slow the machine is, and for nothing else.
func inNamespaceOf(t *testing.T, addresses ...string) bool {
	if !isInNamespace() {
		runInNamespace(t, "ip")
		return false
	}
	addAddresses(t, addresses...)
	t.Setenv(auto.NetworksEnv, "shm,tcp")
	delayTCP(t, time.Hour)
	return true
}

const shared, apart = "10.1.0.1:7000", "10.1.0.2:7000" // addresses of both namespaces, and of one

// onEach are dials, by the network that carries them.
var onEach = map[string]struct {
	network string
	d       Dialer
}{
	"auto":                          {"auto", Dialer{}},
	"auto, of a link of its own":    {"auto", Dialer{Config: &Config{Dedicated: true}}},
	"auto, over several links":      {"auto", Dialer{Config: &Config{Links: 4}}},
	"auto, with TrustUser":          {"auto", Dialer{TrustUser: func(uint32) bool { return true }}},
	"auto, and nothing but shm":     {"auto", Dialer{Require: []string{"shm"}}},
	"tcp, for which auto is dialed": {"tcp", Dialer{ForTCP: "auto"}},
	"shm":                           {"shm", Dialer{}},
}

// A thread reaches the process of its own namespace, over shm as over TCP, whichever namespace
// the process has dialed first, and whatever is shared between dials.
func TestThreadsReachTheirOwnNamespace(t *testing.T) {
	if !inNamespaceOf(t, "10.1.0.1/32") {
		return
	}
	pod := newElsewhere(t, "10.1.0.1/32", "10.1.0.2/32")
	here := listenAuto(t, shared)
	var there, alone net.Listener
	pod.do(func() { there, alone = listenAuto(t, shared), listenAuto(t, apart) })
	reach := func(name, address string, l net.Listener) {
		with := onEach[name]
		c := dial(t, &with.d, with.network, address)
		require.Equal(t, "shm", carrierOf(c), name)
		s := accept(t, l)
		write(t, c, "hello")
		requireNext(t, s, "hello")
	}
	for name := range onEach {
		for range 9 { // which is enough for a second link
			reach(name, shared, here)
			pod.do(func() { reach(name, shared, there) })
		}
		pod.do(func() { reach(name, apart, alone) })
	}
	links := func() (n int) {
		for _, i := range Links() {
			if i.Dialed && i.Remote.String() == apart {
				n++
			}
		}
		return n
	}
	before := links()
	pod.do(func() {
		for range 9 {
			reach("auto, over several links", apart, alone)
		}
	})
	require.Equal(t, before+1, links(), "a thread makes as many links as others")
	for _, l := range []net.Listener{here, there, alone} {
		requireNothingElse(t, l)
	}
}

// What has failed in one namespace is tried in another, and the other way round.
func TestFailuresAreThoseOfANamespace(t *testing.T) {
	if !inNamespaceOf(t, "10.1.0.1/32") {
		return
	}
	pod := newElsewhere(t, "10.1.0.1/32")
	listenTCP(t, shared)
	require.Equal(t, "tcp", dialAuto(t, Dialer{}, shared).Carrier())
	pod.do(func() {
		l := listenAuto(t, shared)
		requireCarried(t, l, Dialer{}, "shm")
		require.NoError(t, l.Close())
	})
}

// Two connections of this process may have the same addresses, in two namespaces.
func TestConnectionsOfTwoNamespacesHaveTheSameAddresses(t *testing.T) {
	if !inNamespaceOf(t, "10.1.0.1/32") {
		return
	}
	pod := newElsewhere(t, "10.1.0.1/32")
	from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.1.0.1:9000"))
	connect := func() {
		l := listen(t, ListenConfig{}, "shm", shared)
		dial(t, &Dialer{LocalAddr: from, Timeout: hang.After}, "shm", shared)
		accept(t, l)
	}
	connect()
	pod.do(connect)
	require.Len(t, openConnections(), 4)
	require.Len(t, slices.DeleteFunc(openConnections(), func(c *connection) bool { return c.Local.String() != from.String() }), 2)
}

// Of a name with addresses of both families, too.
func TestBothFamiliesAreThoseOfANamespace(t *testing.T) {
	if !inNamespaceOf(t, "10.1.0.1/32", "fd00::1/128") {
		return
	}
	pod := newElsewhere(t, "10.1.0.1/32", "fd00::1/128")
	here := listenAuto(t, "[fd00::1]:7000")
	pod.do(func() {
		there := listenAuto(t, shared) // the second family
		d := Dialer{TCP: &net.Dialer{FallbackDelay: time.Hour}, Resolver: resolver("10.1.0.1", "fd00::1")}
		requireConnected(t, dialAuto(t, d, "host.example:7000"), there)
	})
	requireNothingElse(t, here)
}

// Where no goroutine can follow, TCP carries the connection, from the caller's thread.
func TestTCPLeadsWhereNoGoroutineCan(t *testing.T) {
	if !inNamespaceOf(t, "10.1.0.1/32") {
		return
	}
	pod := newElsewhere(t, "10.1.0.1/32")
	here := listenAuto(t, shared)
	pod.do(func() {
		require.NoError(t, syscall.Unshare(syscall.CLONE_NEWNS))
		require.NoError(t, syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		require.NoError(t, syscall.Mount("none", "/proc", "tmpfs", 0, ""))
		there := listenAuto(t, shared)
		c := requireCarried(t, there, Dialer{}, "tcp")
		require.ErrorContains(t, c.PassedOver()[0], "cannot enter")
		d := Dialer{Resolver: resolver("10.1.0.1", "fd00::1")}
		requireConnected(t, dialAuto(t, d, "host.example:7000"), there)
		_, err := (&Dialer{Require: []string{"shm"}}).Dial("auto", shared)
		require.ErrorContains(t, err, "cannot enter")
	})
	requireNothingElse(t, here)
}
