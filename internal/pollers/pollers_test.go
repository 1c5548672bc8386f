package pollers

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneFewerThanTheProcessorsPoll(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	before := Time()
	for range 2 * timedEach {
		a, ok := Begin()
		require.True(t, ok)
		b, ok := Begin()
		require.True(t, ok)
		_, ok = Begin()
		require.False(t, ok)
		a.End()
		b.End()
	}
	require.Greater(t, Time(), before)
}
