//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	lib "github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
	"github.com/ringnet/ringnet/internal/testing/strangers"
)

// diagnosed runs ringnet doctor, or a program that runs it, and returns what it found. The
// exit status must fit that.
func diagnosed(t *testing.T, cmd *exec.Cmd) diagnosis {
	t.Helper()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil {
		require.True(t, errors.As(err, &exit), "%v", err)
		require.Equal(t, failed, exit.ExitCode(), string(exit.Stderr))
	}
	var d diagnosis
	require.NoError(t, json.Unmarshal(out, &d), string(out))
	require.Equal(t, err != nil, d.FallsBack, string(out))
	return d
}

// doctor runs ringnet doctor with settings of the environment, and returns what it found.
func doctor(t *testing.T, env string, args ...string) diagnosis {
	t.Helper()
	cmd := commandProcess(append([]string{"--json", "doctor"}, args...)...)
	cmd.Env = append(cmd.Env, env)
	return diagnosed(t, cmd)
}

// find returns a finding.
func (d diagnosis) find(t *testing.T, is func(f finding) bool) finding {
	t.Helper()
	i := slices.IndexFunc(d.Findings, is)
	require.GreaterOrEqual(t, i, 0, "%+v", d.Findings)
	return d.Findings[i]
}

// requireBad requires a bad finding about a subject, with a command that mends it.
func (d diagnosis) requireBad(t *testing.T, subject, what, mend string) {
	t.Helper()
	f := d.find(t, func(f finding) bool { return f.Status == bad && f.Subject == subject && strings.Contains(f.What, what) })
	require.Contains(t, f.Mend, mend)
}

func TestDoctorFindsThatThereIsNoDevice(t *testing.T) {
	if len(host.Root.Devices()) > 0 {
		t.Skip("there is an RDMA device")
	}
	requireShm(t)
	out, err := commandProcess("doctor").CombinedOutput()
	require.NoError(t, err, "shm is all that this host can have: %s", out)
	require.NotContains(t, string(out), "rxe", "which is slower than TCP")
	require.Regexp(t, `^note  devices: there is no RDMA device\n( {8}.*\n)+ok    shm: .*\n$`, string(out))

	// Where the user wants rdma alone, no shared memory makes up for the device that is missing.
	for _, networks := range []string{"rdma", "rdma,tcp"} {
		doctor(t, "RINGNET_NETWORKS="+networks).requireBad(t, noDevices, "no RDMA device", "docker run --network host")
	}
}

func TestDoctorFindsIWARP(t *testing.T) {
	d := diagnosis{Findings: checkDevice(host.Device{Name: "siw0", IWARP: true, Ports: []host.Port{{State: "ACTIVE", Interfaces: []host.Interface{{Name: "lo"}}}}})}
	d.requireBad(t, "siw0", "is an iWARP device", "RoCE")
	require.Len(t, d.Findings, 1, "nothing is said of its ports")
}

// 0 is the kernel's where nobody has configured another.
func TestDoctorNamesTheTrafficClass(t *testing.T) {
	for class, files := range map[string]map[string]string{
		"0":   nil,
		"106": {"sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "106"},
	} {
		onHost(t, files)
		f := checkPort(host.Device{Name: "mlx5_0", Driver: "mlx5_core"}, host.Port{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Interfaces: []host.Interface{{Name: "lo"}}})
		require.Contains(t, f.What, "; traffic class "+class+" by default")
	}
}

func TestDoctorFindsWhyAPeerIsNotReached(t *testing.T) {
	requireShm(t)
	address := perfServing(t, "127.0.0.1")
	d := doctor(t, "", address)
	require.False(t, d.FallsBack, "shm carries the connection, whatever rdma does")
	require.Equal(t, "is connected over shm", d.find(t, func(f finding) bool { return f.Subject == address }).What)

	plain := serve(t, echo)
	d = doctor(t, "", plain)
	d.requireBad(t, plain, "is connected over tcp", "")
	d.requireBad(t, plain, "not over shm", "ringnet proxy --listen auto://")

	nobody := freeAddress(t)
	d = doctor(t, "", nobody)
	d.requireBad(t, nobody, "connection refused", "start the listener")
	d = doctor(t, "", "nobody.invalid:80")
	d.requireBad(t, "nobody.invalid:80", "lookup nobody.invalid", "getent hosts nobody.invalid")
}

// Who switches networks off wants that.
func TestDoctorFindsThatNetworksAreSwitchedOff(t *testing.T) {
	address := perfServing(t, "127.0.0.1")
	for _, args := range [][]string{nil, {address}} {
		d := doctor(t, "RINGNET_NETWORKS=tcp", args...)
		require.False(t, d.FallsBack, "%+v", d.Findings)
		f := d.find(t, func(f finding) bool { return f.Subject == "shm" })
		require.Equal(t, finding{Subject: "shm", Status: note, Code: lib.ReasonSwitchedOff, What: f.What}, f)
		require.Contains(t, f.What, "RINGNET_NETWORKS")
	}
}

// A listener of another user is trusted by none, but for root's, which itself trusts root alone.
func TestDoctorFindsThatTheOtherEndIsAnotherUsers(t *testing.T) {
	requireShm(t)
	requireRoot(t)
	theirs := startProcess(t, asUser(t, commandProcess("--json", "perf", "--listen", "127.0.0.1:0"))).logged("serves", 0)["address"].(string)
	const there = "ringnet proxy --trust-user %d …   # there, or ListenConfig.TrustUser; or one user for both"
	for want, d := range map[string]diagnosis{
		"ringnet proxy --trust-user 12345 …   # here, or Dialer.TrustUser\n" + fmt.Sprintf(there, 0): doctor(t, "", theirs),
		fmt.Sprintf(there, 12345): diagnosed(t, asUser(t, commandProcess("--json", "doctor", perfServing(t, "127.0.0.1")))),
	} {
		f := d.find(t, func(f finding) bool { return f.Code == lib.ReasonOtherUser })
		require.Equal(t, bad, f.Status)
		require.Equal(t, want, f.Mend)
	}
}

func TestDoctorCuresMLX5SingleThreadedOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		doctor(t, "MLX5_SINGLE_THREADED=1").requireBad(t, "rdma", "MLX5_SINGLE_THREADED=1 takes away locks", "unset MLX5_SINGLE_THREADED")
	})
}

func TestDoctorOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		requireRoot(t)
		t.Run("nothing", func(t *testing.T) {
			d := doctor(t, "")
			require.False(t, d.FallsBack, "%+v", d.Findings)
			d.find(t, func(f finding) bool { return f.Subject == "rdma" && f.Status == good })
		})
		t.Run("library", func(t *testing.T) {
			libraries, err := filepath.Glob("/usr/lib/*/librdmacm.so.1")
			require.NoError(t, err)
			require.NotEmpty(t, libraries)
			library, err := filepath.EvalSymlinks(libraries[0])
			require.NoError(t, err)
			d := diagnosed(t, within(t, "unshare", "-m", "sh", "-c", `mount --bind /dev/null "$0" && exec "$@"`, library))
			d.requireBad(t, "rdma", "librdmacm", "apt-get update && apt-get install libibverbs1 librdmacm1")
		})
		t.Run("provider", func(t *testing.T) {
			d := diagnosed(t, within(t, "unshare", "-m", "sh", "-c",
				`mount -t tmpfs none /etc/libibverbs.d && for d in /usr/lib/*/libibverbs; do mount -t tmpfs none "$d"; done && exec "$@"`, "sh"))
			d.requireBad(t, os.Getenv("SOFTROCE_DEVICE"), "no provider rxe", "ibverbs-providers")
		})
		t.Run("permission", func(t *testing.T) {
			setNodes(t, 0o600)
			defer setNodes(t, 0o666)
			d := diagnosed(t, asUser(t, commandProcess("--json", "doctor")))
			d.requireBad(t, "/dev/infiniband/rdma_cm", "permission denied", "/etc/udev/rules.d")
		})
		t.Run("one card", func(t *testing.T) {
			listen := commandProcess("--json", "perf", "--listen", softroceAddress()+":0")
			listen.Env = append(listen.Env, "RINGNET_NETWORKS=rdma,tcp")
			address := startProcess(t, listen).logged("serves", 0)["address"].(string)
			d := doctor(t, "RINGNET_NETWORKS=rdma", address) // however long it takes
			f := d.find(t, func(f finding) bool { return f.Subject == address && strings.Contains(f.What, "its link goes") })
			require.Equal(t, "its link goes from "+softroceAddress()+" to "+softroceAddress(), f.What)
		})
	})
}

// setNodes sets who may open RDMA devices.
func setNodes(t *testing.T, mode os.FileMode) {
	t.Helper()
	nodes, err := filepath.Glob("/dev/infiniband/*")
	require.NoError(t, err)
	for _, node := range nodes {
		require.NoError(t, os.Chmod(node, mode))
	}
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("wants to be root, to be others too")
	}
}

// within returns the command that runs ringnet --json doctor by a program with arguments.
func within(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	doctor := commandProcess("--json", "doctor")
	cmd := exec.Command(name, append(args, doctor.Args...)...)
	cmd.Env = doctor.Env
	return cmd
}

// asUser has a user that runs nothing else run a command of this test program.
func asUser(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	dir := strangers.Folder(t)
	program := filepath.Join(dir, "ringnet") // where that user may go, too
	text, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, text, 0o755))
	for i, arg := range cmd.Args {
		if arg == os.Args[0] {
			cmd.Args[i] = program
		}
	}
	if cmd.Path == os.Args[0] {
		cmd.Path = program
	}
	const uid = 12345
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}
