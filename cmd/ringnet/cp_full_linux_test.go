package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// withoutRoom has a command see a folder with room for 1 MB only.
func withoutRoom(folder string, args ...string) *exec.Cmd {
	cmd := limited(fmt.Sprintf("mount -t tmpfs -o size=1M tmpfs '%s'", folder), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

// What has no room leaves nothing behind that takes the room of what has, and is not sent or fetched again and again.
func TestCpWithAFullDisk(t *testing.T) {
	requireRoot(t)
	from, into := t.TempDir(), t.TempDir()
	for name, size := range map[string]int{"big": 64 << 20, "small": 300_000} {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), make([]byte, size), 0o600))
	}
	for _, networks := range []string{"shm,tcp", "tcp"} {
		t.Setenv("RINGNET_NETWORKS", networks)
		address := startProcess(t, withoutRoom(into, "--json", "cp", "--serve", into, "--listen", "127.0.0.1:0")).logged("receives", 0)["address"].(string)
		_, giving := cpServing(t, from, "--readable")
		for _, cp := range []*exec.Cmd{
			commandProcess("cp", "--retry=1h", filepath.Join(from, "big"), address),
			withoutRoom(into, "cp", "--retry=1h", "--fetch", into, "big", giving),
		} {
			out, err := cp.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "no space left on device")
			require.NotContains(t, string(out), "tries again")
		}
		out, err := commandProcess("cp", "--retry=1h", filepath.Join(from, "small"), address).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
