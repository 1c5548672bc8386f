// Package strangers has users for tests that run programs as others: the tests pass whoever runs them,
// and whatever other users run meanwhile.
package strangers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ID returns one of eight user IDs that nobody has: neither this process's user, nor an account, nor another
// process that runs tests, of which many run at once.
func ID(n int) uint32 { return id(os.Getuid(), os.Getpid(), n) }

// Accounts begin at 1000, and those that systemd and containers hand out at 61184 and above.
func id(own, pid, n int) uint32 {
	const of, each = 1000, 8
	first := 40_000
	if own >= first && own < first+of*each {
		first += of * each
	}
	return uint32(first + pid%of*each + n)
}

// Need skips a test unless this process can run programs as these users.
func Need(t testing.TB) {
	t.Helper()
	lacking := ""
	if os.Geteuid() != 0 {
		lacking = "only root can run programs as other users"
	} else if text, err := os.ReadFile("/proc/self/uid_map"); err != nil || !mapped(string(text), ID(0)) {
		lacking = fmt.Sprintf("this user namespace has no user %d", ID(0))
	}
	if lacking != "" {
		require.NotEqual(t, "true", os.Getenv("CI"), lacking)
		t.Skip(lacking)
	}
}

// mapped reports whether a uid_map of /proc has a user ID of the namespace.
func mapped(uidMap string, uid uint32) bool {
	for line := range strings.Lines(uidMap) {
		var inside, outside, n uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && inside <= uint64(uid) && uint64(uid) < inside+n {
			return true
		}
	}
	return false
}

// Program is the path of this test's binary for a program that another user runs: exec resolves it in the new
// process, which is a copy of this one until then, so it does not matter who may enter the binary's folder.
func Program(t testing.TB) string {
	t.Helper()
	const self = "/proc/self/exe"
	info, err := os.Stat(self)
	require.NoError(t, err)
	if info.Mode()&0o5 != 0o5 { // umask 077
		require.NoError(t, os.Chmod(self, 0o755))
	}
	return self
}

// Folder makes a folder, until the end of the test, in one that other users may enter: TMPDIR may be this user's alone.
func Folder(t testing.TB) string {
	t.Helper()
	for _, in := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if os.Geteuid() == 0 && !open(in) {
			continue
		}
		dir, err := os.MkdirTemp(in, "to")
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		require.NoError(t, os.Chmod(dir, 0o755))
		return dir
	}
	t.Skip("no folder for temporary files is open to other users")
	return ""
}

// open reports whether all users may enter a folder.
func open(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode()&1 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}
