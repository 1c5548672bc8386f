package main

// These tests boot guests, which takes a minute or two, and so they want to be
// asked for: SOFTROCE_TEST_GUESTS=1 go -C tools/softroce test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tool is the path of the tool that these tests run.
var tool string

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if manner := os.Getenv("SOFTROCE_TEST_QEMU"); manner != "" {
		return standInForQEMU(manner, os.Args)
	}
	if os.Getenv("SOFTROCE_TEST_GUESTS") == "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "softroce-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	tool = filepath.Join(dir, "softroce")
	if out, err := exec.Command("go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the tool: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// toolRun is a run of the tool.
type toolRun struct {
	*exec.Cmd
	tmp            string // in the environment of its QEMUs, too
	stdout, stderr bytes.Buffer
}

// newRun prepares a run of the tool in a guest. Whatever happens, the test
// fails when a QEMU of this run is there at its end.
func newRun(t *testing.T, args ...string) *toolRun {
	t.Helper()
	if tool == "" {
		t.Skip("boots a guest; set SOFTROCE_TEST_GUESTS=1")
	}
	r := &toolRun{Cmd: exec.Command(tool, append([]string{"-guest", "-timeout", "9m"}, args...)...)}
	r.tmp = t.TempDir()
	r.Env = append(os.Environ(), "TMPDIR="+r.tmp)
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	t.Cleanup(func() {
		if !eventually(func() bool { return len(r.qemus()) == 0 }) {
			t.Errorf("QEMU is left behind: %s", r.qemus())
		}
		if t.Failed() {
			t.Logf("stdout of the tool:\n%.5000s\nstderr of the tool:\n%.5000s", r.stdout.String(), r.stderr.String())
		}
	})
	return r
}

// qemus returns the process ids of the run's QEMUs.
func (r *toolRun) qemus() []string {
	var pids []string
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		name, _ := os.ReadFile(process + "/comm")
		env, _ := os.ReadFile(process + "/environ")
		if bytes.HasPrefix(name, []byte("qemu-system-")) && bytes.Contains(env, []byte("TMPDIR="+r.tmp)) {
			pids = append(pids, filepath.Base(process))
		}
	}
	return pids
}

// status runs the tool and returns its exit status.
func (r *toolRun) status(t *testing.T) int {
	t.Helper()
	err := r.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return r.ProcessState.ExitCode()
}

// hang is so long that only a hang takes longer, on a busy machine, too.
const hang = 3 * time.Minute

// eventually tells whether is becomes true.
func eventually(is func() bool) bool {
	for deadline := time.Now().Add(hang); ; time.Sleep(20 * time.Millisecond) {
		if is() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// writeFile writes a file below dir and returns its path.
func writeFile(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantFile checks what a file contains.
func wantFile(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil {
		t.Error(err)
	} else if strings.TrimSpace(string(got)) != want {
		t.Errorf("%s: %q, want %q", filepath.Base(path), got, want)
	}
}

// guestScript is run by TestGuest. It leaves what it sees in the scratch
// folder, and then uses the guest as a host that can make a device.
const guestScript = `
cd_is=$(pwd); cd "$SOFTROCE_SCRATCH" || exit 99
echo "$cd_is" >cwd
echo "$NAMED" >env
printf %s "$1" >argument
ulimit -l >memlock
echo "$(ulimit -Sn) $(ulimit -Hn)" >nofile
readlink /proc/self/fd/0 >stdin
cat /sys/class/infiniband/$SOFTROCE_DEVICE/ports/1/state >state
cat /sys/class/net/$SOFTROCE_NETDEV/mtu >mtu
ibv_devinfo -d $SOFTROCE_DEVICE | grep -o PORT_ACTIVE >devinfo
echo gone >"$HOST_FOLDER/discarded" && cat "$HOST_FOLDER/discarded" >discarded
seq 100000 >numbers; mkdir folder; echo moved >a; mv a folder/b

rping -s -a $SOFTROCE_ADDR -C 3 >rping-server 2>&1 &
server=$!
for try in 1 2 3 4 5 6 7 8 9; do
	timeout 180 rping -c -a $SOFTROCE_ADDR -C 3 >rping-client 2>&1; echo $? >rping
	[ $(cat rping) = 0 ] && break
	sleep 0.2
done
wait $server
rping -c -a $SOFTROCE_OTHER_ADDR -C 1 >other 2>&1; echo $? >other-status
timeout 180 rping -s -a $SOFTROCE_ADDR6 -C 1 >/dev/null 2>&1 & sleep 0.5
timeout 180 rping -c -a $SOFTROCE_ADDR6 -C 1 >rping6-client 2>&1; echo $? >rping6

# The tool in its own guest finds the device.
$TOOL -scratch . -- sh -c 'echo $SOFTROCE_DEVICE $SOFTROCE_SCRATCH; exit 5' >found 2>&1; echo $? >found-status
$TOOL -- sh -c 'kill -9 $$'; echo $? >killed-status
$TOOL -timeout 1s -- sleep 60 >timeout 2>&1; echo $? >timeout-status
$TOOL -- softroce-no-such-command >absent 2>&1; echo $? >absent-status
$TOOL -- /etc/passwd >noexec 2>&1; echo $? >noexec-status
$TOOL -- sh -c 'trap "echo got TERM; exit 0" TERM; echo ready; while :; do sleep 0.1; done' >term 2>/dev/null & run=$!
until grep -q ready term; do sleep 0.1; done
kill -TERM $run; wait $run; echo $? >term-status

(sleep 600; echo never) & # holds the output open
cat "$HOST_FOLDER/binary"
cat "$HOST_FOLDER/binary2" >&2
exit 7
`

func TestGuest(t *testing.T) {
	scratch := filepath.Join(t.TempDir(), "scratch, with a comma")
	if err := os.Mkdir(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	binary, binary2 := make([]byte, 1<<20+3), make([]byte, 100_001)
	rand.Read(binary)
	rand.Read(binary2)
	writeFile(t, host, "binary", binary)
	writeFile(t, host, "binary2", binary2)
	script := writeFile(t, host, "script", []byte(guestScript))
	argument := "two  words, \"quotes\"\n$HOME \xff\xfe"

	r := newRun(t, "-scratch", scratch, "--", "sh", script, argument)
	r.Dir = host
	r.Env = append(r.Env, "NAMED=yes", "HOST_FOLDER="+host, "TOOL="+tool)
	if got := r.status(t); got != 7 {
		t.Fatalf("exit status %d, want 7", got)
	}
	if !bytes.Equal(r.stdout.Bytes(), binary) {
		t.Errorf("stdout: %d bytes, want the %d of the file", r.stdout.Len(), len(binary))
	}
	if !bytes.Equal(r.stderr.Bytes(), binary2) {
		t.Errorf("stderr: %d bytes, want the %d of the file", r.stderr.Len(), len(binary2))
	}
	if _, err := os.Stat(filepath.Join(host, "discarded")); err == nil {
		t.Error("what the guest writes outside the scratch folder is on the host")
	}
	var numbers strings.Builder
	for i := range 100_000 {
		fmt.Fprintln(&numbers, i+1)
	}
	for name, want := range map[string]string{
		"cwd": host, "env": "yes", "argument": argument, "memlock": "unlimited", "nofile": "1024 524288", "stdin": "/dev/null",
		"state": "4: ACTIVE", "mtu": "4200", "devinfo": "PORT_ACTIVE", "discarded": "gone",
		"numbers": strings.TrimSpace(numbers.String()), "folder/b": "moved",
		"rping": "0", "rping6": "0",
		"found": "rxe0 " + scratch, "found-status": "5",
		"killed-status": "137",
		"timeout":       "softroce: cut off after 1s (-timeout)", "timeout-status": "124",
		"absent-status": "127", "noexec-status": "126",
		"term": "ready\ngot TERM", "term-status": "143",
	} {
		wantFile(t, filepath.Join(scratch, name), want)
	}
	if got, err := os.ReadFile(filepath.Join(scratch, "other-status")); err != nil || string(got) == "0\n" {
		t.Errorf("rping to the address without RDMA: exit status %q, %v", got, err)
	}
}

func TestGuestThatPanicsIsExplained(t *testing.T) {
	r := newRun(t, "--", "sh", "-c", "echo c >/proc/sysrq-trigger")
	if got := r.status(t); got != exitFailed {
		t.Errorf("exit status %d, want %d", got, exitFailed)
	}
	for _, want := range []string{"guest of node 0 died", "Kernel panic"} {
		if !strings.Contains(r.stderr.String(), want) {
			t.Errorf("stderr does not say %q", want)
		}
	}
}

// TestKilledToolLeavesNoQEMU kills the tool when its QEMU has started. The cleanup of newRun waits for the
// end of this QEMU.
func TestKilledToolLeavesNoQEMU(t *testing.T) {
	r := newRun(t, "--", "sleep", "60")
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	defer r.Wait()
	if !eventually(func() bool { return len(r.qemus()) == 1 }) {
		t.Error("no QEMU has started")
	}
	r.Process.Signal(unix.SIGKILL)
}

func TestSignalIsPassedOnToTheGuest(t *testing.T) {
	r := newRun(t, "--", "sh", "-c", "trap 'echo got HUP; exit 3' HUP; echo ready; while :; do sleep 0.1; done")
	r.Stdout = nil
	pipe, err := r.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	ready, _ := out.ReadString('\n')
	r.Process.Signal(unix.SIGHUP)
	rest, _ := io.ReadAll(out)
	r.Wait()
	if got, want := r.ProcessState.ExitCode(), exitSignal+int(unix.SIGHUP); got != want {
		t.Errorf("exit status %d, want %d", got, want)
	}
	if got := ready + string(rest); got != "ready\ngot HUP\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestQEMUThatDoesNotStartIsAnError(t *testing.T) {
	v, err := startVM(0, &image{machine: machine{qemu: filepath.Join(t.TempDir(), "qemu")}}, accel{}, "", nil)
	if v != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, %v", v, err)
	}
}
