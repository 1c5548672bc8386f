package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Beside a conversation bulk has one message under way, and all of the staging memory again when it has been alone for
// long enough.
func TestBulkThatIsAloneHasAllOfTheStagingMemoryUnderWay(t *testing.T) {
	w := sendWindow{most: 4 * MinWindow}
	require.Equal(t, 4*MinWindow, w.limit())
	w.conversed()
	require.Equal(t, MinWindow, w.limit())
	w.posted += besides - 1
	require.Equal(t, MinWindow, w.limit())
	w.posted++
	require.Equal(t, 4*MinWindow, w.limit())
}
