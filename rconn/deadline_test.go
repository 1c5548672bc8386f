package rconn_test

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var past = time.Unix(1, 0)

func requireTimeout(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	ne, ok := err.(net.Error) // by a type assertion and not errors.As, like net/http
	require.True(t, ok)
	require.True(t, ne.Timeout())
	require.True(t, ne.Temporary()) //nolint:staticcheck // crypto/tls makes the error permanent if it is not
}

func TestDeadlineThatHasPassedReadsAndWritesNothing(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		for _, word := range []string{"one", "two"} {
			_, err := s.Write([]byte(word))
			require.NoError(t, err)
		}
		b := make([]byte, 3)
		_, err := io.ReadFull(c, b)
		require.NoError(t, err)

		require.NoError(t, c.SetDeadline(past))
		n, err := c.Read(b)
		require.Zero(t, n, "though there is data")
		requireTimeout(t, err)
		n, err = c.Write(b)
		require.Zero(t, n, "though there is room")
		requireTimeout(t, err)
		n, err = c.Write(nil)
		require.Zero(t, n)
		requireTimeout(t, err)
		n, err = c.Read(nil)
		require.Zero(t, n)
		require.NoError(t, err, "as in package net")

		require.NoError(t, c.SetDeadline(time.Time{}))
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, "two", string(b))
		_, err = c.Write(b)
		require.NoError(t, err)
		_, err = io.ReadFull(s, b)
		require.NoError(t, err)
		require.Equal(t, "two", string(b))
	})
}

func TestEmptyReadsAndWritesDoNotWait(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, tight)
		n, err := c.Read(nil)
		require.Zero(t, n)
		require.NoError(t, err)

		require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		full, err := c.Write(make([]byte, 1<<20))
		requireTimeout(t, err)
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		n, err = c.Write(nil)
		require.Zero(t, n)
		require.NoError(t, err)

		require.NoError(t, c.Close())
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.Len(t, got, full, "nothing empty was sent")
	})
}

// soon returns a deadline that may have passed when it is set.
func soon(r *rand.Rand) time.Time {
	return time.Now().Add(time.Duration(r.IntN(2_000_000) - 100_000))
}

func TestAwaitReadWaitsForWhatReadReturns(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		awaits := func(end func() error) {
			awaited := started(c.AwaitRead)
			v.parked()
			requireNothing(t, awaited)
			require.NoError(t, end())
			require.NoError(t, <-awaited)
		}
		awaits(func() error { _, err := s.Write([]byte("came")); return err })
		require.NoError(t, c.AwaitRead(), "it has taken nothing")
		require.NoError(t, nextIs("came", c))

		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		requireTimeout(t, c.AwaitRead())
		write(t, s, "late")
		requireTimeout(t, c.AwaitRead())
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		require.NoError(t, nextIs("late", c))

		awaits(s.CloseWrite)
		_, err := c.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		c, _ = v.connect(t, nil, nil)
		awaits(c.Close)
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
