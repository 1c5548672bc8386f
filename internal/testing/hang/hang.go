// Package hang has the bound of tests that wait in real time.
//
// How long something takes there, the machine decides, and what else runs on it. Tests of how
// long something may take run in virtual time, over sim, or look at the order of events.
package hang

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// After is so long that only a hang takes longer, on a busy machine and on an emulated one, too.
const After = 3 * time.Minute

// Unless waits until a condition holds, and fails the test if it never does.
func Unless(t testing.TB, condition func() bool, msgAndArgs ...any) {
	t.Helper()
	require.Eventually(t, condition, After, time.Millisecond, msgAndArgs...)
}
