package rconn_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAwaitReadWaitsForWhatReadReturns(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		awaited := started(c.AwaitRead)
		v.parked()
		requireNothing(t, awaited)
		_, err := s.Write([]byte("came"))
		require.NoError(t, err)
		require.NoError(t, <-awaited)
		require.NoError(t, c.AwaitRead(), "it has taken nothing")
		require.NoError(t, nextIs("came", c))

		awaited = started(c.AwaitRead)
		v.parked()
		require.NoError(t, s.CloseWrite())
		require.NoError(t, <-awaited)
		_, err = c.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

func TestAwaitReadEndsWithTheDeadlineAndWithClose(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		requireTimeout(t, c.AwaitRead())
		_, err := s.Write([]byte("late"))
		require.NoError(t, err)
		requireTimeout(t, c.AwaitRead())
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		require.NoError(t, nextIs("late", c))

		awaited := started(c.AwaitRead)
		v.parked()
		require.NoError(t, c.Close())
		require.NoError(t, <-awaited)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func requireNothing[T any](t *testing.T, from <-chan T) {
	t.Helper()
	select {
	case got := <-from:
		require.Fail(t, "came too early", "%v", got)
	default:
	}
}
