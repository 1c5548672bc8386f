//go:build linux

package integration_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// roleVariable names the role of a process that a test has started.
const roleVariable = "RINGNET_TEST_ROLE"

// roles are the programs other than the tests that this test binary can be. A test and its
// process exchange lines on the standard streams: see say and hear.
var roles = map[string]func(args []string) error{
	"echoer": echoer,
	"leaver": leaver,
	"many":   many,
	"peers":  peers,

	"traffic server": trafficServer,
	"traffic client": trafficClient,

	"ports server": portsServer,
	"ports client": portsClient,
}

// process is another process.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// start starts a process in a role. The end of the test kills it.
func start(t *testing.T, role string, args ...string) *process {
	t.Helper()
	return startAs(t, nil, role, args...)
}

// startAs is start, for another user, say.
func startAs(t *testing.T, attr *syscall.SysProcAttr, role string, args ...string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...) // any user may execute that, wherever the file is
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{t, cmd, in, bufio.NewReader(out)}
}

// say sends a line.
func (p *process) say(line string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, line)
	require.NoError(p.t, err)
}

// hear receives a line.
func (p *process) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err, "the other process has ended")
	return strings.TrimSuffix(line, "\n")
}

// tell has the process do something, and returns when that is done.
func (p *process) tell(what string) {
	p.t.Helper()
	p.say(what)
	require.Equal(p.t, "done", p.hear())
}

// kill ends the process as kill -9 does, and returns when it has ended.
func (p *process) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // returns an error: it was killed
}

// stop stops the process, and returns when all its threads stand still.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	require.NoError(p.t, unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED, nil))
}

// goOn continues a process that was stopped.
func (p *process) goOn() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// wait waits until the process has ended, and requires that it succeeded.
func (p *process) wait() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Wait())
}

// stdin has the lines that the test says to a process in a role.
var stdin = bufio.NewReader(os.Stdin)

// say and hear are the other process's halves of the methods of these names. Hear returns
// "" when the test has ended.
func say(line string) { fmt.Println(line) }

// sayJSON says x in a line.
func sayJSON(x any) error { return json.NewEncoder(os.Stdout).Encode(x) }

func hear() string {
	line, _ := stdin.ReadString('\n')
	return strings.TrimSuffix(line, "\n")
}

// aloneVariable names the test that a process was started to run by itself.
const aloneVariable = "RINGNET_TEST_ALONE"

// alone runs a test in a process of its own, which has run no other test and may do to
// itself what it likes.
func alone(t *testing.T, attr *syscall.SysProcAttr, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv(aloneVariable) == t.Name() {
		test(t)
		return
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	runAgain(t, exe, aloneVariable, attr)
}

// runAgain runs a test in another process of the given executable, which finds the test's
// name in the variable.
func runAgain(t *testing.T, exe, variable string, attr *syscall.SysProcAttr) {
	t.Helper()
	name := strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^")
	cmd := exec.Command(exe, "-test.run=^"+name+"$", "-test.v="+fmt.Sprint(testing.Verbose()))
	var overdue <-chan time.Time
	if deadline, ok := t.Deadline(); ok {
		// The other process reports first where it hangs, unless the kernel holds it.
		tenth := time.Until(deadline) / 10
		cmd.Args = append(cmd.Args, "-test.timeout="+(8*tenth).String())
		overdue = time.After(9 * tenth)
	}
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	cmd.SysProcAttr = attr
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	said := func() string {
		text, _ := os.ReadFile(out.Name())
		return string(text)
	}
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("%v\n%s", err, said())
		}
		t.Logf("%s", said())
	case <-overdue:
		stacks := kernelStacks(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		t.Fatalf("the process does not end, even though its time is over:\n%s\n%s", stacks, said())
	}
}

// kernelStacks returns the stacks of a process's threads in the kernel.
func kernelStacks(pid int) string {
	var all strings.Builder
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", pid))
	for _, stack := range stacks {
		text, err := os.ReadFile(stack)
		fmt.Fprintf(&all, "%s (%v)\n%s", stack, err, text)
	}
	return all.String()
}
