package limits

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// NeedDescriptors skips a test unless this process may have n descriptors beside those of the rest of the program.
func NeedDescriptors(t testing.TB, n uint64) {
	t.Helper()
	const rest = 64
	var l unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &l))
	if l.Cur < n+rest {
		t.Skipf("this process may have %d descriptors (ulimit -n): needs %d", l.Cur, n+rest)
	}
}
