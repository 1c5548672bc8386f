package rconn_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/rconn"
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

func TestDeadlinesOfTheTwoDirectionsAreApart(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		require.NoError(t, c.SetReadDeadline(past))
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		require.NoError(t, c.SetWriteDeadline(past))
		_, err = s.Write([]byte("x"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
	})
}

func TestDeadlineSetLaterWakes(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, tight)
		read := started(func() error { _, err := c.Read(make([]byte, 1)); return err })
		accepted, wrote := v.blockedWrite(c)
		require.NoError(t, c.SetDeadline(past))
		requireTimeout(t, <-read)
		requireTimeout(t, <-wrote)

		require.NoError(t, c.SetDeadline(time.Time{}))
		require.NoError(t, c.Close())
		n, err := pattern(0).receive(s, 0, 1000, random(t, 1))
		require.Equal(t, io.EOF, err)
		require.Equal(t, <-accepted, n)
	})
}

func TestDeadlineMovedEarlierWakes(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, _ := v.connect(t, nil, tight)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Hour)))
		read := started(func() error { _, err := c.Read(make([]byte, 1)); return err })
		_, wrote := v.blockedWrite(c)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Millisecond)))
		requireTimeout(t, <-read)
		requireTimeout(t, <-wrote)
	})
}

func TestDeadlineMovedLaterDoesNotWake(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		c, s := v.connect(t, nil, nil)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		read := started(func() error { _, err := c.Read(make([]byte, 1)); return err })
		v.parked()
		require.NoError(t, c.SetReadDeadline(time.Now().Add(2*time.Minute)))
		_, err := s.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, <-read)
	})
}

// Deadlines pass all the time while both ends send, and the streams stay whole.
func TestDeadlinesThatPassLeaveTheStreamWhole(t *testing.T) {
	overEachFabric(t, func(t *testing.T, v venue) {
		for i, shape := range shapes {
			client, server := v.connect(t, shape.dialer, shape.listener)
			total := v.times(300_000)
			half := func(c *rconn.Conn, out, in pattern) func() error {
				return func() error {
					sent := started(func() error {
						err := sendAgainstDeadlines(c, out, total, rand.New(rand.NewPCG(1, uint64(out))))
						if err == nil {
							err = c.CloseWrite()
						}
						return err
					})
					if err := receiveAgainstDeadlines(c, in, total, rand.New(rand.NewPCG(2, uint64(in)))); err != nil {
						return fmt.Errorf("%s: %w", shape.name, err)
					}
					return <-sent
				}
			}
			out, in := pattern(2*i), pattern(2*i+1)
			atOnce(t, half(client, out, in), half(server, in, out))
			atOnce(t, client.Close, server.Close)
			requireRareCredits(t, client, shape.dialer)
			requireRareCredits(t, server, shape.listener)
		}
	})
}

// soon returns a deadline that may have passed when it is set.
func soon(r *rand.Rand) time.Time {
	return time.Now().Add(time.Duration(r.IntN(2_000_000) - 100_000))
}

func sendAgainstDeadlines(c net.Conn, p pattern, total int, r *rand.Rand) error {
	for at := 0; at < total; {
		if err := c.SetWriteDeadline(soon(r)); err != nil {
			return err
		}
		b := make([]byte, min(1+r.IntN(30_000), total-at))
		p.fill(b, at)
		n, err := c.Write(b)
		at += n
		if !isTimeout(err) && (err != nil || n < len(b)) {
			return fmt.Errorf("wrote %d of %d bytes: %v", n, len(b), err)
		}
	}
	return nil
}

func receiveAgainstDeadlines(c net.Conn, p pattern, total int, r *rand.Rand) error {
	b := make([]byte, 30_000)
	for at := 0; ; {
		if err := c.SetReadDeadline(soon(r)); err != nil {
			return err
		}
		n, err := c.Read(b[:1+r.IntN(len(b))])
		if err := p.check(b[:n], at); err != nil {
			return err
		}
		at += n
		switch {
		case isTimeout(err) && n > 0:
			return fmt.Errorf("%d bytes and a timeout", n)
		case err == io.EOF && at == total:
			return nil
		case err != nil && !isTimeout(err):
			return fmt.Errorf("after %d of %d bytes: %w", at, total, err)
		}
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}
