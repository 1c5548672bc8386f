package bubble_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/bubble"
)

func TestIn(t *testing.T) {
	require.False(t, bubble.In())
	require.NoError(t, bubble.RefuseRDMA())
	synctest.Test(t, func(t *testing.T) {
		require.True(t, bubble.In())
		require.ErrorIs(t, bubble.RefuseRDMA(), errors.ErrUnsupported)
	})
}
