package credit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlotsKeepRoomForControlMessages(t *testing.T) {
	q := NewSlots(LinkControlSends+2, LinkControlSends)
	for n := range uint64(2) {
		require.True(t, q.MaySend())
		require.Equal(t, n, q.Post())
	}
	require.False(t, q.MaySend())
	for n := range uint64(LinkControlSends) {
		require.Equal(t, n+2, q.Post())
	}
	require.Equal(t, LinkControlSends+2, q.Outstanding())
	require.PanicsWithValue(t, "credit: more than 12 work requests outstanding", func() { q.Post() })

	q.Complete(2) // and with it those before
	require.Equal(t, 9, q.Outstanding())
	require.Equal(t, uint64(12), q.Next())
	require.False(t, q.MaySend())
	require.PanicsWithValue(t, "credit: completion of work request 2, outside 3 to 12", func() { q.Complete(2) })
	require.PanicsWithValue(t, "credit: completion of work request 12, outside 3 to 12", func() { q.Complete(12) })
	require.Panics(t, func() { q.Complete(math.MaxUint64) })
	q.Complete(10)
	require.True(t, q.MaySend())
	q.Complete(11)
	require.Zero(t, q.Outstanding())
	require.Panics(t, func() { q.Complete(12) })
}

func TestSlotsKnowWhichCompletionsWillCome(t *testing.T) {
	q := NewSlots(16, LinkControlSends)
	require.True(t, q.Completed(0))
	require.Zero(t, q.Unsignaled())
	q.Post()
	q.Post()
	require.Equal(t, 2, q.Unsignaled(), "unsignaled ones do not complete by themselves")
	q.Post()
	q.Signal()
	require.False(t, q.Completed(3))
	require.Zero(t, q.Unsignaled())
	q.Post()
	require.Equal(t, 1, q.Unsignaled())
	q.Complete(2)
	require.True(t, q.Completed(3))
	require.False(t, q.Completed(4))
	require.Equal(t, 1, q.Unsignaled())
	q.Complete(3) // failures complete unsignaled ones too
	require.True(t, q.Completed(4))
	require.Zero(t, q.Unsignaled())
}
