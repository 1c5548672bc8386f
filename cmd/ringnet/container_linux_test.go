package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/programs"
)

// This runs the recipe of docs/deploy.md for Docker with podman, whose flags are the same.
func TestContainersOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		requireRoot(t)
		podman := newPodman(t)
		network, device, memory := []string{"--network", "host"}, []string{"--device", "/dev/infiniband"}, []string{"--ulimit", "memlock=-1"}
		diagnose := func(flags ...[]string) diagnosis {
			return diagnosed(t, podman.run(slices.Concat(append(flags, []string{"--user", "1000"})...)...))
		}
		d := diagnose(network, device, memory)
		require.False(t, d.FallsBack, "%+v", d.Findings)
		for _, is := range []string{"rdma", "shm"} {
			d.find(t, func(f finding) bool { return f.Subject == is && f.Status == good })
		}
		diagnose(network, memory).requireBad(t, "/dev/infiniband/rdma_cm", "is not there", "docker run --device /dev/infiniband")
		diagnose([]string{"--network", "none"}, device, memory).requireBad(t, os.Getenv("SOFTROCE_DEVICE")+" port 1", "in another network namespace", "docker run --network host")
		// 64 KiB are what services of systemd have by default.
		diagnose(network, device, []string{"--ulimit", "memlock=65536"}).requireBad(t, "locked memory", "64 KiB at most: 0 connections", "docker run --ulimit memlock=-1")
	})
}

// podman runs containers with the files of this system, and changes none of them.
type podman struct{ path, dir, command string }

func newPodman(t *testing.T) podman {
	t.Helper()
	path := programs.Path(t, "podman", "podman")
	dir, err := os.MkdirTemp("", "podman")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, folder := range []string{"etc", "proc", "sys", "dev", "tmp", "run", "work"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "image", folder), 0o755))
	}
	const cgroups = "/sys/fs/cgroup"
	require.NoError(t, os.MkdirAll(cgroups, 0o755))
	if err := syscall.Mount("none", cgroups, "cgroup2", 0, ""); err != syscall.EBUSY { // it is there
		require.NoError(t, err)
		t.Cleanup(func() { _ = syscall.Unmount(cgroups, 0) })
	}
	command, err := os.Executable()
	require.NoError(t, err)
	return podman{path, dir, command}
}

// run returns the command of doctor in a container with these flags.
func (p podman) run(flags ...string) *exec.Cmd {
	args := []string{"--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--events-backend", "none", "run", "--rm", "--cgroups", "disabled", "--log-driver", "none",
		"--env", asCommand + "=1", "--volume", p.command + ":/work/ringnet:ro"}
	for _, folder := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc"} {
		if _, err := os.Stat(folder); err == nil {
			args = append(args, "--volume", folder+":"+folder+":ro")
		}
	}
	args = append(args, flags...)
	args = append(args, "--rootfs", filepath.Join(p.dir, "image"), "/work/ringnet", "--json", "doctor")
	return exec.Command(p.path, args...)
}
