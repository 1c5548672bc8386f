package fabric

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// That a connection is lost is said once for each kind of reason, that it may go on as often
// as that is so.
func TestChanges(t *testing.T) {
	var c Changes
	require.NoError(t, c.Next())
	first, second := errors.New("first"), fmt.Errorf("second: %w", ErrQueuePair)
	for range 2 {
		c.Add(ErrDisconnected, first)
		c.Add(ErrPortDown, ErrPortDown)
		c.Add(ErrQueuePair, second)
	}
	require.Equal(t, first, c.Next())
	require.Equal(t, ErrPortDown, c.Next())
	require.Equal(t, second, c.Next())
	require.Equal(t, ErrPortDown, c.Next())
	require.NoError(t, c.Next())
	c.Add(ErrDisconnected, first)
	require.NoError(t, c.Next())
}
