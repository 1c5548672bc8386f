package budget

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func limited(registered, locked int) *Budget {
	b := New(func() Limits { return Limits{registered, locked} })
	b.Refresh()
	return b
}

func TestReserveStopsAtTheLimit(t *testing.T) {
	b := limited(8<<10, Unlimited)
	one, other := Account{Budget: b}, Account{Budget: b}
	require.NoError(t, one.Reserve(5<<10))
	require.NoError(t, other.Reserve(3<<10))
	err := one.Reserve(1)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "1 KiB more would have to be registered, and ringnet has 8 KiB of 8 KiB (ringnet.SetMemoryLimit)")
	require.Equal(t, 5<<10, one.Bytes(), "what is refused is not reserved")

	other.Release(1 << 10)
	require.NoError(t, one.Reserve(1<<10))
	used, limits := b.State()
	require.Equal(t, Limits{Registered: 8 << 10}, used.Limits)
	require.Equal(t, Limits{8 << 10, Unlimited}, limits)
}

func TestGrowthStopsFirst(t *testing.T) {
	a := Account{Budget: limited(80, Unlimited)}
	require.Error(t, a.ReserveToGrow(71))
	require.False(t, a.Budget.MayGrow(71, false))
	require.True(t, a.Budget.MayGrow(70, false))
	require.NoError(t, a.ReserveToGrow(70))
	require.Error(t, a.ReserveToGrow(1))
	require.False(t, a.Budget.MayGrow(1, false))
	require.NoError(t, a.Reserve(10))
	require.Error(t, a.Reserve(1))
}

func TestLockedMemoryHasALimitOfItsOwn(t *testing.T) {
	b := limited(100<<10, 10<<10)
	locked, shared := Account{Budget: b, Locked: true}, Account{Budget: b}
	require.NoError(t, locked.Reserve(8<<10))
	require.NoError(t, shared.Reserve(50<<10))
	err := locked.Reserve(3 << 10)
	require.ErrorContains(t, err, "3 KiB more would have to be locked, ringnet has 8 KiB, and this process may lock 10 KiB in all (RLIMIT_MEMLOCK)")
	require.Error(t, locked.ReserveToGrow(1<<10))
	require.False(t, b.MayGrow(1<<10, true))
	require.True(t, b.MayGrow(1<<10, false))
	require.NoError(t, shared.ReserveToGrow(20<<10))
	locked.Release(8 << 10)
	shared.Release(70 << 10)
	used, _ := b.State()
	require.Zero(t, used)
}

func TestShortagesSayOfWhat(t *testing.T) {
	err := &ShortageError{Wanted: 1025, Used: 2048, Limit: 4096, Of: AddressSpace}
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.EqualError(t, err, "2 KiB more would have to be mapped, ringnet has 2 KiB, and there are addresses for 4 KiB (RLIMIT_AS, or 32 bits)")
}

func TestSetLimit(t *testing.T) {
	b := limited(100, Unlimited)
	a := Account{Budget: b}
	b.SetLimit(10)
	require.Error(t, a.Reserve(11))
	b.SetLimit(1000)
	require.NoError(t, a.Reserve(900))
	b.SetLimit(0)
	require.Error(t, a.Reserve(0), "what is in use stays, and nothing comes to it")
	a.Release(900)
	require.NoError(t, a.Reserve(100))
}

// The system is asked when something begins, and not with the lock of a link held.
func TestReserveAsksNobody(t *testing.T) {
	asked := 0
	b := New(func() Limits {
		require.True(t, asked < 2)
		asked++
		return Limits{100, Unlimited}
	})
	b.Refresh()
	a := Account{Budget: b}
	require.NoError(t, a.Reserve(60))
	require.NoError(t, a.ReserveToGrow(20))
	require.Error(t, a.Reserve(60))
	require.Equal(t, 1, asked)
	_, limits := b.State()
	require.Equal(t, 100, limits.Registered)
	require.Equal(t, 2, asked)
}

func TestReserveManyAtOnce(t *testing.T) {
	b := limited(100, Unlimited)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			a := Account{Budget: b}
			for range 1000 {
				if err := a.Reserve(30); err == nil {
					a.Release(30)
				} else if !errors.As(err, new(*ShortageError)) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	used, _ := b.State()
	require.Zero(t, used)
}
