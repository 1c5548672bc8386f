package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What has no room leaves nothing behind that takes the room of what has.
func TestCpGoesOnWhenTheDiskWasFull(t *testing.T) {
	requireRoot(t)
	from, into := t.TempDir(), t.TempDir()
	for name, size := range map[string]int{"big": 4_000_000, "small": 300_000} {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), make([]byte, size), 0o600))
	}
	serve := limited(fmt.Sprintf("mount -t tmpfs -o size=1M tmpfs '%s'", into), "--json", "cp", "--serve", into, "--listen", "127.0.0.1:0")
	serve.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	server := startProcess(t, serve)
	address := server.logged("receives", 0)["address"].(string)
	out, err := commandProcess("cp", "--retry=1h", filepath.Join(from, "big"), address).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no space left on device")
	out, err = commandProcess("cp", "--retry=1h", filepath.Join(from, "small"), address).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// Nor is it fetched again and again.
func TestCpFetchesNothingForWhichThereIsNoRoom(t *testing.T) {
	requireRoot(t)
	from, into := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(from, "big"), make([]byte, 4_000_000), 0o600))
	address := start(t, "cp", "--serve", from, "--readable", "--listen", "127.0.0.1:0").logged("receives", 0)["address"].(string)
	fetch := limited(fmt.Sprintf("mount -t tmpfs -o size=1M tmpfs '%s'", into), "cp", "--retry=1h", "--fetch", into, "big", address)
	fetch.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := fetch.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no space left on device")
	require.NotContains(t, string(out), "tries again")
}
