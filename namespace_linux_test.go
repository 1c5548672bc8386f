package ringnet

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// namespaceEnv says that this process is in a network namespace of a test.
const namespaceEnv = "RINGNET_TEST_NAMESPACE"

// inNamespace runs the rest of a test in a process and a network namespace of its own, with
// some addresses and nftables rules for IPv4. It returns true there, and false in the
// process that has started it, which has nothing more to do.
func inNamespace(t *testing.T, rules string) bool {
	t.Helper()
	if !isInNamespace() {
		runInNamespace(t, "ip", "nft")
		return false
	}
	for _, command := range []string{
		"ip link set lo up",
		"ip address add 10.1.0.1/32 dev lo", // of this host
		"ip address add 10.1.0.2/32 dev lo", // of what stands for another
		"nft -f -",
	} {
		words := strings.Fields(command)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdin = strings.NewReader("table ip test {\n" + rules + "\n}\n")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
	onlySHM(t)
	require.Greater(t, auto.DefaultTimes.Connect, time.Second, "for TCP to repeat a lost SYN")
	return true
}

func isInNamespace() bool { return os.Getenv(namespaceEnv) != "" }

// runInNamespace runs a test, which needs some tools, in a process and a network namespace of its
// own.
func runInNamespace(t *testing.T, tools ...string) {
	t.Helper()
	lacking := ""
	if os.Geteuid() != 0 {
		lacking = "only root can make network namespaces"
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			lacking = err.Error() + " (Debian: iproute2, nftables)"
		}
	}
	if lacking != "" {
		require.NotEqual(t, "true", os.Getenv("CI"), lacking)
		t.Skip(lacking)
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), namespaceEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}

// TestAutoInNamespaces requires that auto reaches the listener that TCP reaches under rules
// of nftables. It has them as subtests, which a guest, for which they would take minutes,
// leaves out: none has the name of a device's network.
func TestAutoInNamespaces(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"AutoGoesWhereATCPPortIsMapped":      testAutoGoesWhereATCPPortIsMapped,
		"AutoGoesWhereTCPIsBalancedTo":       testAutoGoesWhereTCPIsBalancedTo,
		"AutoDoesNotPassAFilterThatStopsTCP": testAutoDoesNotPassAFilterThatStopsTCP,
		"AutoProvesALinkThoughASYNIsLost":    testAutoProvesALinkThoughASYNIsLost,
		"AutoIsCarriedByTCPWhere":            testAutoIsCarriedByTCPWhere,
		"AutoIsCarriedByTCPThatIsHalfOpen":   testAutoIsCarriedByTCPThatIsHalfOpen,
		"AutoAndSeveralListenersOnOnePort":   testAutoAndSeveralListenersOnOnePort,
		"AutoWithoutAPortToSpare":            testAutoWithoutAPortToSpare,
	} {
		t.Run(name, test)
	}
}

// byTCP are rules under which TCP leads elsewhere than a link, or than it seems; and why TCP then carries
// what is dialed to 10.1.0.1:7000.
var byTCP = map[string]struct {
	rules, listener, reason string
	code                    ReasonCode
}{
	"APortIsMapped": {`chain output {
		type nat hook output priority -100
		ip daddr 10.1.0.1 tcp dport 7000 dnat to 10.1.0.2:7001
	}`, "10.1.0.2:7001", "nobody listens at the address itself", ReasonNoListener},
	"TheDialersAddressIsTranslated": {`chain postrouting {
		type nat hook postrouting priority 100
		tcp dport 7000 masquerade to :50000-50100
	}`, "10.1.0.1:7000", "the listener sees another port than the dialer's request has", ReasonElsewhere},
	"TCPIsSlow": {`chain input {
		type filter hook input priority 0
		tcp dport 7000 tcp flags syn / fin,syn,rst,ack numgen inc mod 3 < 2 drop
	}`, "10.1.0.1:7000", "when the second SYN is lost, too, TCP repeats it later, and the link does not wait so long", ReasonNotTried},
}

func testAutoIsCarriedByTCPWhere(t *testing.T) {
	for name, c := range byTCP {
		t.Run(name, func(t *testing.T) {
			if !inNamespace(t, c.rules) {
				return
			}
			setAutoTimes(t, func(times *auto.Times) { times.Connect = auto.DefaultTimes.Connect })
			l := listenBriefly(t, c.listener)
			conn := dialAuto(t, Dialer{}, "10.1.0.1:7000")
			require.Equal(t, "tcp", carrierOf(conn))
			require.Equal(t, c.code, conn.PassedOver()[0].Code, c.reason)
			requireConnected(t, conn, l)
			requireNothingElse(t, l)
		})
	}
}

// The listener at the address itself is another than that to which its port is mapped.
func testAutoGoesWhereATCPPortIsMapped(t *testing.T) {
	if !inNamespace(t, byTCP["APortIsMapped"].rules) {
		return
	}
	host := listenBriefly(t, "10.1.0.1:7000")
	pod := listenAuto(t, "10.1.0.2:7001")
	for range 3 {
		c := dialAuto(t, Dialer{}, "10.1.0.1:7000")
		require.Equal(t, "tcp", carrierOf(c))
		require.Equal(t, ReasonElsewhere, c.PassedOver()[0].Code)
		requireConnected(t, c, pod)
	}
	requireNothingElse(t, pod)
	requireNothingElse(t, host)
	requireCarried(t, pod, Dialer{}, "shm") // by its own address
}

func testAutoGoesWhereTCPIsBalancedTo(t *testing.T) {
	if !inNamespace(t, `chain output {
		type nat hook output priority -100
		ip daddr 10.1.0.1 tcp dport 7000 numgen inc mod 2 1 dnat to 10.1.0.2:7001
	}`) {
		return
	}
	pod := listenAuto(t, "10.1.0.2:7001")
	for range 3 {
		host := listenAuto(t, "10.1.0.1:7000")
		c := dialAuto(t, Dialer{}, "10.1.0.1:7000")
		require.Equal(t, "shm", carrierOf(c))
		requireConnected(t, c, host)
		requireNothingElse(t, host)
		require.NoError(t, host.Close())
		CloseIdleLinks()
		hang.Unless(t, func() bool { return len(Links()) == 0 })

		host = listenBriefly(t, "10.1.0.1:7000")
		c = dialAuto(t, Dialer{}, "10.1.0.1:7000")
		require.Equal(t, ReasonElsewhere, c.PassedOver()[0].Code)
		requireConnected(t, c, pod)
		requireNothingElse(t, host)
		require.NoError(t, host.Close())
		forget(t)
	}
	requireNothingElse(t, pod)
}

// Auto does not pass a filter that stops TCP, though shared memory could.
func testAutoDoesNotPassAFilterThatStopsTCP(t *testing.T) {
	if !inNamespace(t, `chain input {
		type filter hook input priority 0
		tcp dport 7000 reject with tcp reset
		tcp dport 7001 drop
	}`) {
		return
	}
	rejected, dropped := listenAuto(t, "10.1.0.1:7000"), listenAuto(t, "10.1.0.1:7001")
	_, err := Dial("auto", "10.1.0.1:7000")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	requireNothingElse(t, rejected)
	_, err = DialTimeout("auto", "10.1.0.1:7001", time.Second)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	requireNothingElse(t, dropped)
}

// TCP repeats a lost SYN after a second. The link waits for it.
func testAutoProvesALinkThoughASYNIsLost(t *testing.T) {
	if !inNamespace(t, `chain input {
		type filter hook input priority 0
		tcp dport 7000 tcp flags syn / fin,syn,rst,ack numgen inc mod 2 0 drop
	}`) {
		return
	}
	l := listenAuto(t, "10.1.0.1:7000")
	requireCarried(t, l, Dialer{}, "shm")
}

// The last ACK of TCP's handshake is lost, and there is no other until data comes:
// the dialer is connected and the listener is not.
func testAutoIsCarriedByTCPThatIsHalfOpen(t *testing.T) {
	if !inNamespace(t, `chain input {
		type filter hook input priority 0
		tcp dport 7000 tcp flags ack / fin,syn,rst,ack tcp flags & psh == 0 drop
	}`) {
		return
	}
	l := listenBriefly(t, "10.1.0.1:7000")
	c := dialAuto(t, Dialer{}, "10.1.0.1:7000")
	require.Equal(t, "tcp", carrierOf(c))
	require.Equal(t, ReasonElsewhere, c.PassedOver()[0].Code)
	write(t, c, "hello")
	s := accept(t, l)
	requireNext(t, s, "hello")
	requireNothingElse(t, l)
}

// Several listeners share a port. The kernel chooses which of them a dial of one reaches,
// and each dial is accepted.
func testAutoAndSeveralListenersOnOnePort(t *testing.T) {
	if !inNamespace(t, "") {
		return
	}
	reuse := &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, 15 /* SO_REUSEPORT */, 1)
		})
		require.NoError(t, controlErr)
		return err
	}}
	proveWithin(t, lapse)
	first := listen(t, ListenConfig{TCP: reuse}, "auto", "10.1.0.1:7000")
	tcp, err := reuse.Listen(t.Context(), "tcp", "10.1.0.1:7000")
	require.NoError(t, err)
	second, err := new(ListenConfig).ListenOn(tcp.(*net.TCPListener))
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, ReasonInUse, second.PassedOver()[0].Code)
	proveWithin(t, time.Hour) // of dialers, which hear of a lapse then

	const dials = 12
	accepted := make(chan string, 2*dials)
	for _, l := range []net.Listener{first, second} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c.RemoteAddr().String()
				defer c.Close()
			}
		}()
	}
	dialed := make(map[string]bool)
	for range dials {
		forget(t)
		c := dialAuto(t, Dialer{Config: &Config{Dedicated: true}}, "10.1.0.1:7000")
		dialed[c.LocalAddr().String()] = true
	}
	for range dials {
		require.True(t, dialed[<-accepted])
	}
	select {
	case addr := <-accepted:
		require.Fail(t, "accepted", "%v", addr)
	case <-time.After(50 * time.Millisecond):
	}
}

// Where no port is free for the proof's connection, TCP uses one that it has to other
// destinations.
func testAutoWithoutAPortToSpare(t *testing.T) {
	if !inNamespace(t, "") {
		return
	}
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40001"), 0))
	other := listenTCP(t, "10.1.0.1:9000")
	for range 2 {
		dialTCP(t, nil, other.Addr().String())
	}
	l := listenBriefly(t, "10.1.0.1:7000")
	c := dialAuto(t, Dialer{}, l.Addr().String())
	require.Equal(t, "tcp", carrierOf(c))
	require.Equal(t, ReasonInUse, c.PassedOver()[0].Code)
	require.ErrorContains(t, c.PassedOver()[0], "no port for the TCP connection that proves a link")
	requireConnected(t, c, l)
}
