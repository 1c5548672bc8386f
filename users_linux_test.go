package ringnet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/strangers"
	"github.com/ringnet/ringnet/internal/transport"
)

// strangerEnv says what a process of another user does: its role, and the arguments of that.
const strangerEnv = "RINGNET_STRANGER"

func TestMain(m *testing.M) {
	words := strings.Fields(os.Getenv(strangerEnv))
	if len(words) == 0 {
		before := slices.Sorted(maps.Keys(networks))
		status := m.Run()
		if after := slices.Sorted(maps.Keys(networks)); !slices.Equal(before, after) {
			fmt.Fprintln(os.Stderr, "a test has left networks:", after)
			status = 1
		}
		os.Exit(status)
	}
	if err := roles[words[0]](words[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test is over
}

// roles are what a stranger does. Each prints a line.
var roles = map[string]func(args []string) error{
	"listen": func(args []string) error {
		l, err := Listen(args[0], args[1])
		if err == nil {
			fmt.Println(l.Addr())
		}
		return err
	},
	"dial": func(args []string) error {
		autoTimes.Answer, autoTimes.Proof = time.Hour, time.Hour
		c, err := Dial(args[0], args[1])
		if err != nil {
			return err
		}
		says := carrierOf(c)
		for _, r := range c.(*AutoConn).PassedOver() {
			if r.Network == "shm" {
				says += fmt.Sprintf(" %s: %v", r.Code, r.Err)
			}
		}
		fmt.Println(says)
		return nil
	},
	"ask":   askAsStranger,
	"own":   askOneself,
	"squat": answerAsStranger,
	"send":  sendDescriptors,
	"forge": forgeNames,
	"swell": swell,
	"claim": claimAsStranger,
}

// claimAsStranger asks a listener of auto over shm for a link, and names a port of TCP that is
// not its own.
func claimAsStranger(args []string) error {
	f, err := transport.SHM.Open(nil, nil)
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return err
	}
	_, err = claim(context.Background(), f, netip.MustParseAddrPort(args[0]), uint16(port), func() error { return nil })
	fmt.Println("claimed", err)
	return nil
}

var strangerUID = strangers.ID(0)

// stranger starts a process of another user in a role, and returns the line that it prints.
func stranger(t *testing.T, role ...string) string {
	t.Helper()
	return strangerWith(t, strangerUID, role...)
}

func strangerWith(t *testing.T, uid uint32, role ...string) string {
	t.Helper()
	strangers.Need(t)
	cmd := exec.Command(strangers.Program(t))
	cmd.Env = append(os.Environ(), strangerEnv+"="+strings.Join(role, " "))
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// If auto waited for shm in vain, these tests would take an hour.

func TestAutoListensWhereAnotherUserListensOnSHM(t *testing.T) {
	onlySHM(t)
	l := listenAuto(t, stranger(t, "listen", "shm", anyPort(t).String()))
	require.Empty(t, requireCarried(t, l, Dialer{}, "shm").PassedOver())
}

func TestAutoDialsOverTCPWhereAnotherUserListens(t *testing.T) {
	onlySHM(t)
	c := dial(t, &Dialer{}, "auto", stranger(t, "listen", "auto", "127.0.0.1:0"))
	require.Equal(t, "tcp", carrierOf(c))
	reason := c.(*AutoConn).PassedOver()[0]
	require.Equal(t, ReasonOtherUser, reason.Code)
	require.ErrorContains(t, reason, "shm: the listener at ")
	require.NotContains(t, reason.Error(), "shm: shm: ")
}

// A listener of root, too, accepts no dialer of another user without TrustUser. The dialer is told
// so, and not that there is no listener.
func TestAutoSaysThatTheListenerDoesNotTrustTheDialersUser(t *testing.T) {
	onlySHM(t)
	l := listenAuto(t, "127.0.0.1:0")
	says := stranger(t, "dial", "auto", l.Addr().String())
	require.Equal(t, fmt.Sprintf("tcp other-user: connection refused (another user: the peer's user ID is 0, and it does not trust ours, %d)", strangerUID), says)
}

// listenToStrangers returns a listener of auto that trusts the user of strangers.
func listenToStrangers(t *testing.T) *AutoListener {
	t.Helper()
	delayTCP(t, time.Hour)
	lc := ListenConfig{TrustUser: func(uid uint32) bool { return uid == strangerUID }}
	l := listen(t, lc, "auto", "127.0.0.1:0")
	return l.(*AutoListener)
}

// The proof of a link that another user dials is a TCP connection of that user.
func TestAutoCarriesATrustedUserOverSHM(t *testing.T) {
	l := listenToStrangers(t)
	require.Equal(t, "shm", stranger(t, "dial", "auto", l.Addr().String()))
}

// A user that may connect over shm cannot end others' TCP connections by naming their ports.
func TestAutoListenerGivesATrustedUserNoConnectionOfAnother(t *testing.T) {
	l := listenToStrangers(t)
	from := anyPort(t)
	require.Equal(t, "claimed <nil>", stranger(t, "claim", l.Addr().String(), strconv.Itoa(from.Port)))
	c := dialTCP(t, from, l.Addr().String())
	s := accept(t, l)
	require.Equal(t, from.String(), s.RemoteAddr().String(), "what the listener accepts first")
	write(t, s, "hello")
	requireNext(t, c, "hello")
}
