package provider

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInlineLimitIsThatOfTheEnvironment(t *testing.T) {
	for value, want := range map[string]int{"": 0, "off": -1, "1": 1, "96": 96, "220": 220} {
		t.Setenv("RINGNET_INLINE", value)
		got, err := InlineLimit()
		require.NoError(t, err, value)
		assert.Equal(t, want, got, value)
	}
	for _, value := range []string{"0", "-1", "221", "on", "96B", " 96"} {
		t.Setenv("RINGNET_INLINE", value)
		assert.EqualError(t, CheckSettings(), fmt.Sprintf("the environment variable RINGNET_INLINE is %q: want 1 to 220, in bytes, or off", value))
	}
}

func TestRelaxedOrderingIsSwitchedOffByTheEnvironment(t *testing.T) {
	for value, want := range map[string]bool{"": true, "on": true, "off": false} {
		t.Setenv("RINGNET_RELAXED_ORDERING", value)
		relaxed, err := RelaxedOrdering()
		require.NoError(t, err)
		assert.Equal(t, want, relaxed, "%q", value)
	}
	t.Setenv("RINGNET_RELAXED_ORDERING", "no")
	assert.ErrorContains(t, CheckSettings(), `RINGNET_RELAXED_ORDERING is "no": want on, off`)
}
