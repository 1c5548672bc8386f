package ringnet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// strangerEnv has the network and the address at which a process of another user listens.
const strangerEnv = "RINGNET_STRANGER"

func TestMain(m *testing.M) {
	network, address, ok := strings.Cut(os.Getenv(strangerEnv), " ")
	if !ok {
		os.Exit(m.Run())
	}
	l, err := Listen(network, address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test is over
}

// stranger starts a process of another user that listens at an address, and returns where
// it does.
func stranger(t *testing.T, network, address string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		const why = "only root can run programs as other users"
		require.NotEqual(t, "true", os.Getenv("CI"), why)
		t.Skip(why)
	}
	dir, err := os.MkdirTemp("", "ringnet")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	path := filepath.Join(dir, "stranger")
	require.NoError(t, os.WriteFile(path, program, 0o755))

	const uid = 1000
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), strangerEnv+"="+network+" "+address)
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

// onlySHM has auto do without rdma, whatever this machine has.
func onlySHM(t *testing.T) {
	f, err := openSHM(nil, nil)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	better(t, f, nil)
}

// If auto waited for shm, these tests would take an hour.

func TestAutoListensWhereAnotherUserListensOnSHM(t *testing.T) {
	onlySHM(t)
	delayTCP(t, time.Hour)
	l := listenAuto(t, stranger(t, "shm", anyPort(t).String()))
	require.Empty(t, requireCarried(t, l, Dialer{}, "shm").PassedOver())
}

func TestAutoDialsOverTCPWhereAnotherUserListens(t *testing.T) {
	onlySHM(t)
	delayTCP(t, time.Hour)
	c, err := Dial("auto", stranger(t, "auto", "127.0.0.1:0"))
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, "tcp", c.LocalAddr().Network())
	reason := c.(*AutoConn).PassedOver()[0]
	require.Equal(t, ReasonOtherUser, reason.Code)
	require.ErrorContains(t, reason, "shm: the listener at ")
	require.NotContains(t, reason.Error(), "shm: shm: ")
}
