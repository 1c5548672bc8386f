package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// asTool is set where this test binary is the tool.
const asTool = "IDEALCARD_TEST_AS_TOOL"

// madeCard is where make leaves the card.
const madeCard = "../../bin/card"

func TestMain(m *testing.M) {
	if os.Args[0] == inside || os.Getenv(asTool) != "" {
		main()
	}
	if err := placeCard(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// placeCard makes the card that the tool expects beside this binary.
func placeCard() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if out, err := exec.Command("make", "-C", "card").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	made, err := filepath.Abs(madeCard)
	return errors.Join(err, os.Symlink(made, filepath.Join(filepath.Dir(self), "card")))
}

// tool returns a command that runs the tool.
func tool(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asTool+"=1")
	return cmd
}

// idealcard runs a command on the card, and returns its output and exit status.
func idealcard(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return result(t, tool(t, args...))
}

func result(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	out, _ := cmd.CombinedOutput()
	if strings.Contains(string(out), "no mount namespace can be made") || strings.Contains(string(out), "lets neither root nor users mount") {
		t.Skipf("%s", out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

const show = "test -c /dev/null && id -u && ls /sys/class/infiniband /dev/infiniband && echo $SOFTROCE_ADDR"

func TestCommandFindsTheDeviceAndAllElse(t *testing.T) {
	out, status := idealcard(t, "--", "sh", "-c", show)
	require.Equal(t, fmt.Sprintf("%d\n/dev/infiniband:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\nideal0\n127.0.0.1\n", os.Getuid()), out)
	require.Zero(t, status)
}

// As a kernel shows it: no GID of InfiniBand tells its interface, and that is of IPoIB by its type, with
// the GID at the end of its address.
func TestFilesOfInfiniBandAreAsAKernelHasThem(t *testing.T) {
	out, status := idealcard(t, "-fabric", infiniBandFile, "--", "sh", "-c",
		"cd /sys/class; ls infiniband/ib0/ports/1/gid_attrs/ndevs; cat infiniband/ib0/ports/1/gids/0 net/lo/type net/lo/mtu net/lo/address; ls net | wc -l")
	require.Zero(t, status, out)
	others, err := os.ReadDir("/sys/class/net")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("fe80:0000:0000:0000:0000:0000:0001:dea2\n32\n2044\n80:00:00:48:fe:80:00:00:00:00:00:00:00:00:00:00:00:01:de:a2\n%d\n", len(others)), out)
	out, status = idealcard(t, "--", "sh", "-c", "cd /sys/class; cat infiniband/ideal0/ports/1/gid_attrs/ndevs/0 net/lo/type")
	require.Zero(t, status, out)
	require.Equal(t, "lo\n772\n", out)
}

func TestUserWhoIsNotRootStaysWhoHeIs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	dir, err := os.MkdirTemp("/tmp", "idealcard-test") // TMPDIR may be root's alone
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o777))
	program, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	cmd := tool(t, "--", "sh", "-c", show)
	cmd.Path = filepath.Join(dir, "idealcard")
	require.NoError(t, os.WriteFile(cmd.Path, program, 0o755))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "card"), os.DirFS(madeCard)))
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, status := result(t, cmd)
	require.Zero(t, status, out)
	require.Contains(t, out, "65534\n")
	require.Contains(t, out, "ideal0\n")
}

func TestStatusIsTheCommands(t *testing.T) {
	for command, want := range map[string]int{"exit 3": 3, "kill -TERM $$": 128 + 15, "true": 0} {
		_, status := idealcard(t, "--", "sh", "-c", command)
		require.Equal(t, want, status, command)
	}
	out, status := idealcard(t, "--", "/no/such/program")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, "/no/such/program")
}

func TestMessageWithoutAReceiveFailsTheCommand(t *testing.T) {
	message := "echo 1 >/sys/class/infiniband/ideal0/ports/1/hw_counters/rcvd_rnr_err"
	out, status := idealcard(t, "--", "sh", "-c", message)
	require.Equal(t, 1, status)
	require.Contains(t, out, "rcvd_rnr_err rose by 1")
	_, status = idealcard(t, "-rnr", "--", "sh", "-c", message)
	require.Zero(t, status)
	_, status = idealcard(t, "--", "sh", "-c", message+"; exit 4")
	require.Equal(t, 4, status)
}

func TestRawMeasuresEachWorkload(t *testing.T) {
	for _, dma := range []string{"copy", "free"} {
		for _, w := range []string{"turn 64", "turn 4096", "ping-pong 64", "stream 64", "stream 65536", "event-1 64", "event-40 64"} {
			out, status := idealcard(t, "-dma", dma, "--", "sh", "-c", "raw "+w+" 50")
			require.Zero(t, status, "%s: %s", w, out)
			var sample struct{ Ops, Bytes, Seconds, P50, CPU float64 }
			require.NoError(t, json.Unmarshal([]byte(out), &sample), out)
			require.Positive(t, sample.Ops, w)
			require.Positive(t, sample.P50, w)
		}
	}
}

func TestParseRefusesWhatCannotBe(t *testing.T) {
	for _, args := range [][]string{{}, {"-dma", "none", "--", "true"}, {"-latency", "-1s", "--", "true"}, {"-rdma-core", "50", "--", "true"}} {
		_, err := parse(args)
		require.Error(t, err, args)
	}
	out, status := idealcard(t, "-manners", "none", "--", "true")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, `manner "none"`)
	require.NotContains(t, out, "-seed", "nothing was drawn")
}

func TestWhatIsNotThereIsNamed(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	require.NoError(t, os.Mkdir(long, 0o755))
	cmd := tool(t, "--", "true")
	cmd.Env = append(cmd.Env, "TMPDIR="+long) // too long for the path of a socket
	out, status := result(t, cmd)
	require.Equal(t, exitFailed, status, out)
	require.Contains(t, out, "TMPDIR")

	alone := filepath.Join(t.TempDir(), "idealcard")
	program, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(alone, program, 0o755))
	cmd = tool(t, "--", "true")
	cmd.Path = alone
	out, status = result(t, cmd)
	require.Equal(t, exitFailed, status, out)
	require.Contains(t, out, "make bin/idealcard")
}

func TestFabricWithoutRoomForItsAddresses(t *testing.T) {
	out, status := idealcard(t, "--", "sh", "-c", "ulimit -v 4000000; raw ping-pong 64 1")
	require.NotZero(t, status)
	require.Contains(t, out, "ulimit -v must permit")
}

// Whether the command ends by itself or the launcher is killed.
func TestNothingOutlivesTheLauncher(t *testing.T) {
	const left = "setsid sleep 1000 & echo $!; (setsid sleep 1000 & echo $!) & sleep 1000 & echo $!; "
	for after, signal := range map[string]syscall.Signal{"read line": 0, "wait": syscall.SIGKILL} {
		cmd := tool(t, "--", "bash", "-c", left+after)
		folder := t.TempDir()
		cmd.Env = append(cmd.Env, "TMPDIR="+folder)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var pids [3]int
		if n, _ := fmt.Fscan(out, &pids[0], &pids[1], &pids[2]); n < len(pids) {
			_ = cmd.Wait()
			t.Skip("the command has not begun: this system lets nobody mount")
		}
		if signal != 0 {
			require.NoError(t, cmd.Process.Signal(signal))
		}
		require.NoError(t, in.Close())
		_, err = io.ReadAll(out) // which all of them have open
		require.NoError(t, err)
		_ = cmd.Wait()
		for _, pid := range pids {
			require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, after)
		}
		files, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Empty(t, files, after)
	}
}
