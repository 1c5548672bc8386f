package main

import (
	"encoding/json"
	"fmt"
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

func TestMain(m *testing.M) {
	if os.Args[0] == inside || os.Getenv(asTool) != "" {
		main()
	}
	os.Exit(m.Run())
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

func TestUserWhoIsNotRootStaysWhoHeIs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	dir, err := os.MkdirTemp("", "idealcard-test")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o777))
	program, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	cmd := tool(t, "--", "sh", "-c", show)
	cmd.Path = filepath.Join(dir, "idealcard")
	require.NoError(t, os.WriteFile(cmd.Path, program, 0o755))
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+dir, "TMPDIR="+dir)
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

func TestLatencyIsThatOfEachMessage(t *testing.T) {
	out, status := idealcard(t, "-latency", "100us", "--", "raw", "ping-pong", "64", "300")
	require.Zero(t, status, out)
	var sample struct{ P50 float64 }
	require.NoError(t, json.Unmarshal([]byte(out), &sample), out)
	require.GreaterOrEqual(t, sample.P50, 99e3, "nanoseconds, half a round trip")
}

func TestParseRefusesWhatCannotBe(t *testing.T) {
	for _, args := range [][]string{{}, {"-dma", "none", "--", "true"}, {"-latency", "-1s", "--", "true"}} {
		_, err := parse(args)
		require.Error(t, err, args)
	}
}
