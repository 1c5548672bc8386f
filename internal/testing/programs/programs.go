//go:build unix

package programs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/strangers"
)

// Path is the path of a program of a Debian package.
func Path(t testing.TB, name, pack string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		// Debian has several versions of PostgreSQL side by side, in folders of their own.
		if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
			return slices.Max(found)
		}
		if os.Getenv("CI") == "" && os.Getenv("RINGNET_REQUIRE_PROGRAMS") == "" {
			t.Skipf("no %s (Debian: apt-get install %s): %v", name, pack, err)
		}
	}
	require.NoError(t, err)
	return path
}

// Start starts a program and waits until it prints a line that contains ready. The
// program is ended with the test.
func Start(t testing.TB, cmd *exec.Cmd, ready string) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		r.Close()
	})
	lines := bufio.NewScanner(r)
	var printed strings.Builder
	for lines.Scan() {
		fmt.Fprintln(&printed, lines.Text())
		if strings.Contains(lines.Text(), ready) {
			go func() { _, _ = io.Copy(io.Discard, r) }()
			return
		}
	}
	require.FailNow(t, "did not start", printed.String())
}

// StartRedis starts a redis-server that saves nothing, with the given flags. It is ended
// with the test.
func StartRedis(t testing.TB, flags ...string) {
	t.Helper()
	flags = append([]string{"--save", "", "--dir", t.TempDir()}, flags...)
	Start(t, exec.Command(Path(t, "redis-server", "redis-server"), flags...), "eady to accept connections") // after "The server is now r" or "R"
}

// StartPostgres starts a PostgreSQL server with a setting, and returns the folder of its
// socket. Its user is bench, without a password. It is ended with the test.
func StartPostgres(t testing.TB, setting string) (dir string) {
	t.Helper()
	postgres, initdb := Path(t, "postgres", "postgresql"), Path(t, "initdb", "postgresql")
	dir, as := postgresFolder(t)
	run := func(path string, args ...string) *exec.Cmd {
		cmd := exec.Command(path, args...)
		cmd.SysProcAttr, cmd.Dir, cmd.Env = as, dir, append(os.Environ(), "LC_ALL=C")
		return cmd
	}
	out, err := run(initdb, "-D", dir+"/data", "-A", "trust", "-U", "bench", "--no-sync").CombinedOutput()
	require.NoError(t, err, string(out))
	Start(t, run(postgres, "-D", dir+"/data", "-k", dir, "-c", setting, "-c", "fsync=off", "-c", "shared_memory_type=mmap"),
		"ready to accept connections")
	return dir
}

// postgresFolder makes a folder for the files of PostgreSQL, and returns it with the user
// to run PostgreSQL as if this process is root's, as which it does not run.
func postgresFolder(t testing.TB) (string, *syscall.SysProcAttr) {
	t.Helper()
	dir := strangers.Folder(t) // with a short path, for its socket
	if os.Geteuid() != 0 {
		return dir, nil
	}
	u, err := user.Lookup("postgres")
	require.NoError(t, err)
	uid, err := strconv.Atoi(u.Uid)
	require.NoError(t, err)
	gid, err := strconv.Atoi(u.Gid)
	require.NoError(t, err)
	require.NoError(t, os.Chown(dir, uid, gid))
	return dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
