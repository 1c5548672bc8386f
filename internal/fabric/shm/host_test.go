//go:build linux

// Which addresses are this host's, in network namespaces where that is asked
// for trouble.

package shm

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// inNamespace runs the rest of a test in a process with a network namespace of
// its own, which a shell script has set up.
func inNamespace(t *testing.T, script string, test func()) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		skip(t, "iproute2 is not installed: %v", err)
	}
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		skip(t, "there is no IPv6: %v", err)
	}
	inProcess(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, func() {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		require.NoError(t, err, "%s", out)
		test()
	})
}

const testEnv = "RINGNET_SHM_TEST"

// inProcess runs the rest of a test in a process of its own.
func inProcess(t *testing.T, attr *syscall.SysProcAttr, test func()) {
	t.Helper()
	if os.Getenv(testEnv) == t.Name() {
		test()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), testEnv+"="+t.Name())
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if _, ran := err.(*exec.ExitError); err != nil && !ran {
		skip(t, "cannot start a process with %+v: %v", attr, err)
	}
	require.NoError(t, err, "%s", out)
}

// skip is for what a machine may lack, but not the one that decides.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// addresses gives a namespace an interface with addresses of every kind. The kernel makes the
// routes to those of IPv6 in the background. Neighbours that do not answer are given up soon.
const addresses = `
ip link set lo up
ip link add v0 type veth peer name v1
ip link set v0 up
ip link set v1 up
echo 1 >/proc/sys/net/ipv6/conf/v1/disable_ipv6
ip addr add 192.0.2.1/24 brd + dev v0
ip addr add 192.0.2.2/24 dev v0
ip addr add 2001:db8::1/64 dev v0 nodad
ip addr add 2001:db8::2/64 dev v0 nodad
ip addr add fe80::1/64 dev v0 nodad
ip route add local 198.51.100.0/24 dev lo
ip route add unreachable 203.0.113.0/24
ip -6 route add local 2001:db8:a::/64 dev lo
for a in 2001:db8::1 2001:db8::2 fe80::1; do
	until ip -6 route show table local | grep -q "^local $a "; do sleep 0.01; done
done
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
echo 10 >/proc/sys/net/ipv4/neigh/v0/retrans_time_ms
echo 10 >/proc/sys/net/ipv6/neigh/v0/retrans_time_ms
`

// With net.ipv4.ip_nonlocal_bind, usual beside HAProxy and keepalived, a socket
// can be bound to every address there is.
func TestAddressesAreThisHostsWhereTCPSaysSo(t *testing.T) {
	inNamespace(t, addresses, func() {
		v0, err := net.InterfaceByName("v0")
		require.NoError(t, err)
		for _, bind := range []string{"0", "1"} {
			for _, family := range []string{"ipv4", "ipv6"} {
				require.NoError(t, os.WriteFile("/proc/sys/net/"+family+"/ip_nonlocal_bind", []byte(bind), 0))
			}
			t.Run("ip_nonlocal_bind="+bind, func(t *testing.T) {
				compareWithTCP(t, map[string]bool{
					"127.0.0.1":                         true,
					"127.1.2.3":                         true,
					"127.255.255.255":                   false, // broadcast
					"192.0.2.1":                         true,
					"192.0.2.2":                         true,
					"192.0.2.77":                        false, // a neighbour who is not there
					"192.0.2.255":                       false, // broadcast
					"198.51.100.7":                      true,  // all of a network that a route says is here
					"203.0.113.1":                       false,
					"224.0.0.1":                         false,
					"255.255.255.255":                   false,
					"8.8.8.8":                           false, // unreachable
					"::1":                               true,
					"::ffff:192.0.2.1":                  true,
					"::ffff:8.8.8.8":                    false,
					"::1%lo":                            true,
					"2001:db8::":                        false, // anycast
					"2001:db8::1":                       true,
					"2001:db8::1%v0":                    true,
					"2001:db8::2":                       true,
					"2001:db8::77":                      false,
					"2001:db8:a::7":                     true,
					"2001:db8:b::7":                     false,
					"fe80::1":                           false, // of which interface?
					"fe80::1%v0":                        true,
					"fe80::1%v1":                        false,
					"fe80::1%nowhere":                   false,
					"fe80::77%v0":                       false,
					"ff02::1%v0":                        false,
					"ff02::1":                           false,
					"2001:4860:4860::8888":              false,
					"::ffff:255.255.255.255":            false,
					"::ffff:127.0.0.1":                  true,
					"fe80::1%" + strconv.Itoa(v0.Index): true,
				})
			})
		}
	})
}

// compareWithTCP asks for each address whether TCP and this fabric can reach
// this host there.
func compareWithTCP(t *testing.T, local map[string]bool) {
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	f := newFabric(t)
	for text, want := range local {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			at := netip.AddrPortFrom(netip.MustParseAddr(text), l.Addr().(*net.TCPAddr).AddrPort().Port())
			patience := time.Second // with whoever will never answer
			if want {
				patience = time.Minute
			}
			c, err := net.DialTimeout("tcp", at.String(), patience)
			require.Equal(t, want, err == nil, "TCP: %v", err)
			if err == nil {
				defer c.Close()
			}
			ep, err := f.Dial(ctx, netip.AddrPort{}, at)
			if !want {
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
				require.ErrorIs(t, err, fabric.ErrOtherHost)
				_, err = f.Listen(at, 1)
				require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
				return
			}
			require.NoError(t, err)
			defer ep.Close()
			assert.Equal(t, c.RemoteAddr().String(), net.TCPAddrFromAddrPort(ep.RemoteAddr()).String())
			// At a port of its own: some of these addresses are the same one.
			sl, err := f.Listen(netip.AddrPortFrom(at.Addr(), 0), 1)
			require.NoError(t, err)
			require.NoError(t, sl.Close())
		})
	}
}

// systemd's RestrictAddressFamilies and container runtimes may refuse netlink, in
// different words. The first address of each network is known all the same, and what
// is not this host's is never taken for it.
func TestAddressesWhereNetlinkIsRefused(t *testing.T) {
	for name, refused := range map[string]struct {
		call  systemCall
		errno syscall.Errno
	}{
		"family": {callNetlink, unix.EAFNOSUPPORT},
		"call":   {callNetlink, unix.ENOSYS},
		"send":   {callSendto, unix.ENOSYS},
		"answer": {callRecvfrom, unix.ENOSYS},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, addresses, func() { addressesWithout(t, refused.call.with(t, refused.errno)) })
		})
	}
}

func addressesWithout(t *testing.T, netlink systemCall) {
	for _, family := range []string{"ipv4", "ipv6"} {
		require.NoError(t, os.WriteFile("/proc/sys/net/"+family+"/ip_nonlocal_bind", []byte("1"), 0))
	}
	require.NoError(t, netlink.refuse())
	_, err := routeType(netip.MustParseAddr("127.0.0.1"), 0)
	require.ErrorIs(t, err, netlink.errno)
	for text, want := range map[string]bool{
		"127.0.0.1":       true,
		"127.1.2.3":       true,
		"127.255.255.255": true, // broadcast, but to this host alone
		"192.0.2.1":       true,
		"192.0.2.2":       false, // though it is: 192.0.2.1 talks to it
		"192.0.2.77":      false,
		"192.0.2.255":     false,
		"203.0.113.1":     false,
		"224.0.0.1":       false,
		"8.8.8.8":         false,
		"::1":             true,
		"2001:db8::1":     true,
		"2001:db8::77":    false,
		"fe80::1%v0":      false, // whichever v0 is
	} {
		err := checkLocal(netip.MustParseAddr(text))
		assert.Equal(t, want, err == nil, "%s: %v", text, err)
		if err != nil {
			assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		}
	}
}

// What cannot be asked for want of descriptors is no answer: there may be more of them later.
func TestNothingIsDoubtedForWantOfDescriptors(t *testing.T) {
	inProcess(t, nil, func() {
		l := listen(t, newFabric(t), 1)
		withoutDescriptors(t, func() {
			_, err := newFabric(t).Dial(ctx, netip.AddrPort{}, l.Addr())
			assert.ErrorIs(t, err, syscall.EMFILE)
			assert.NotErrorIs(t, err, syscall.ECONNREFUSED, "nobody has refused")
			err = checkClaim(netip.AddrPortFrom(host, 50_000))
			assert.ErrorIs(t, err, syscall.EMFILE)
			assert.NotErrorIs(t, err, syscall.EADDRNOTAVAIL)
			_, err = StreamListeners(ctx, "")
			assert.ErrorIs(t, err, syscall.EMFILE)
			assert.NotErrorIs(t, err, errNoOwners)
			err = probe()
			assert.ErrorIs(t, err, syscall.EMFILE)
			assert.NotErrorIs(t, err, errors.ErrUnsupported)
		})
	})
}

// The dialer of a listener that has no descriptor for the memory is to ask again.
func TestAcceptWithoutDescriptorsIsBusy(t *testing.T) {
	inProcess(t, nil, func() {
		f := newFabric(t)
		l := listen(t, f, 1)
		connect := func() (<-chan error, end) {
			done := connecting(dialing(t, f, l))
			ep, err := l.Accept()
			return done, ready(t, ep, err)
		}
		done, e := connect()
		withoutDescriptors(t, func() { assert.ErrorIs(t, e.Accept(ctx, nil), syscall.EMFILE) })
		err := <-done
		assert.True(t, isFull(err), "%v", err)
		assert.ErrorContains(t, err, "too many open files")
		requireAccepts(t, f, l)
	})
}

// withoutDescriptors runs f while this process can have no more of them. It is to be a
// process of its own: what other tests have closed in the background makes room.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	highest, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(highest))
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	limit := old
	limit.Cur = uint64(highest)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	f()
}

// A peer may call itself what it likes, which programs show to people and judge
// by.
func TestPeersCannotInventAddresses(t *testing.T) {
	require.Error(t, checkClaim(netip.AddrPort{}))
	require.Error(t, checkClaim(netip.MustParseAddrPort("127.0.0.1:0")))
	for text, want := range map[string]string{
		"127.0.0.1:443":          "",
		"8.8.8.8:443":            "not this host's",
		"[2001:db8::1]:443":      "not this host's",
		"224.0.0.1:443":          "not this host's",
		"0.0.0.0:443":            "cannot be a connection's",
		"[::]:443":               "cannot be a connection's",
		"[::ffff:127.0.0.1]:443": "cannot be a connection's",
		"[::1%lo]:443":           "cannot be a connection's",
		"[fe80::1]:443":          "not this host's",
		"[fe80::1%nowhere]:443":  "not this host's",
		"[fe80::1%1]:443":        "cannot be a connection's",
		"[fe80::1%lo\nroot logged in\x1b[2J]:443": "names no interface",
	} {
		err := checkClaim(netip.MustParseAddrPort(text))
		if want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, want, text)
		}
	}
	leavesNothing(t)
	l, err := newFabric(t).Listen(netip.AddrPort{}, 1)
	require.NoError(t, err)
	defer l.Close()
	here := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), l.Addr().Port())
	other := netip.AddrPortFrom(netip.MustParseAddr("8.8.8.8"), here.Port())
	assert.Contains(t, claim(t, here, other, here), "not this host's")
	assert.Contains(t, claim(t, here, here, other), "not this host's")
}

// claim dials the listener at an address with any addresses of its own and its target's,
// and returns the reason why it is refused.
func claim(t *testing.T, at, from, target netip.AddrPort) string {
	t.Helper()
	sock, err := connectByName(plainName(netip.AddrPortFrom(netip.Addr{}, at.Port())))
	require.NoError(t, err)
	s, err := newShape(0, 1, 64, 24)
	require.NoError(t, err)
	defer sock.close()
	sock.send((&frame{kind: req, source: from, target: target, shape: s}).encode(), -1)
	var b [maxFrame]byte
	n, _, err := sock.receive(ctx, b[:], false)
	if errors.Is(err, syscall.ECONNRESET) { // for want of a reader of the request
		n, _, err = sock.receive(ctx, b[:], false)
	}
	require.NoError(t, err)
	f, err := decodeFrame(b[:n])
	require.NoError(t, err)
	require.Equal(t, rej, f.kind)
	return f.text + string(f.private)
}
