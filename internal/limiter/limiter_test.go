package limiter

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAReceiverThatDoesNotAnswerHoldsUpNoOther has many requests to one receiver take as long as
// they may. Each has its turn, those of others have theirs at once, and who waits can give up.
func TestAReceiverThatDoesNotAnswerHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[string](10, 4)
		order := make(chan int, 100)
		for i := range cap(order) {
			go func() {
				require.True(t, l.Enter(context.Background(), "silent"))
				order <- i
				time.Sleep(time.Second)
				l.Leave("silent")
			}()
			synctest.Wait()
		}
		began := time.Now()
		require.True(t, l.Enter(t.Context(), "alive"))
		require.Zero(t, time.Since(began))
		l.Leave("alive")
		impatient, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		require.False(t, l.Enter(impatient, "silent"))

		time.Sleep(time.Minute)
		for i := range cap(order) {
			require.Equal(t, i/4, <-order/4, "those of a second come in any order")
		}
		all, _ := l.UnderWay("silent")
		require.Zero(t, all)
		require.Empty(t, l.to)
	})
}

// TestRequestsToManyReceivers has more receivers than requests may be under way.
func TestRequestsToManyReceivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[int](10, 4)
		for i := range 20 {
			go func() {
				require.True(t, l.Enter(context.Background(), i))
				time.Sleep(time.Second)
				l.Leave(i)
			}()
		}
		for _, want := range []int{10, 10, 0} {
			time.Sleep(700 * time.Millisecond)
			all, _ := l.UnderWay(0)
			require.Equal(t, want, all)
		}
		require.Empty(t, l.to)
	})
}
