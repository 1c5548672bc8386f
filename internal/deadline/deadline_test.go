package deadline

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDeadlinePassesAtItsTimeThoughItMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New()
		start := time.Now()
		d.Set(start.Add(time.Second))
		passed := d.Done()
		d.Set(start.Add(time.Hour))
		time.Sleep(time.Minute)
		require.False(t, d.Expired())
		d.Set(start.Add(2 * time.Minute))
		<-passed
		require.Equal(t, 2*time.Minute, time.Since(start))
		require.True(t, d.Expired())
	})
}

func TestDeadlineInThePastPassesAtOnceAndZeroNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New()
		d.Set(time.Now().Add(-1))
		require.True(t, d.Expired())
		<-d.Done()
		d.Set(time.Time{})
		time.Sleep(1000 * time.Hour)
		require.False(t, d.Expired())
	})
}
