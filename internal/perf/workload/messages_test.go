package workload

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// served is a connection that a server serves, and what comes of it.
func served(t *testing.T, s *MessageServer) (net.Conn, chan error) {
	t.Helper()
	client, server := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(server)
		server.Close()
	}()
	t.Cleanup(func() { client.Close() })
	return client, ended
}

func TestServerDoesWhatClientsAsk(t *testing.T) {
	c, ended := served(t, &MessageServer{MaxSize: 100})
	times, _ := newTimes(1, 12, 1)
	require.NoError(t, Exchange(c, Echo, []byte("sent and got"), 3, &times[0]))
	require.NoError(t, Exchange(c, Work, make([]byte, 100), 3, &times[0]))
	require.Len(t, times[0].kept, 6)
	require.NotContains(t, times[0].kept, time.Duration(0))
	times[0].several = 2
	require.NoError(t, Exchange(c, Echo, make([]byte, 100), 6, &times[0]))
	require.Len(t, times[0].kept, 9, "one time for each two")
	require.NoError(t, Exchange(c, Work, make([]byte, 100), 2, nil))
	require.NoError(t, Exchange(c, Echo, make([]byte, 100), 5, nil))
	require.NoError(t, stream(c, make([]byte, 7), 20_000))
	require.NoError(t, c.Close())
	require.NoError(t, <-ended)
}

func TestServerRefusesWhatIsNotAllowed(t *testing.T) {
	for _, bad := range []struct{ op, size, n int }{
		{Echo, 101, 1}, {Sink, 0, 1}, {Sink, -1, 1}, {Echo, 1, -1}, {FirstOwn, 1, 1}, {-1, 1, 1},
	} {
		c, ended := served(t, &MessageServer{MaxSize: 100})
		require.NoError(t, Request(c, bad.op, bad.size, bad.n))
		require.Error(t, <-ended, "%v", bad)
	}
}

func TestServerGivesUpWhoeverTakesTooLong(t *testing.T) {
	c, ended := served(t, &MessageServer{MaxSize: 100, Deadline: time.Now})
	var timeout net.Error
	require.True(t, errors.As(<-ended, &timeout) && timeout.Timeout())
	require.Error(t, Request(c, Echo, 1, 1))
}

// A client that has many connections has the server take no memory for each.
func TestServerHasFewLongMessagesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 2 * maxOwn
		s := &MessageServer{MaxSize: size, Long: 2}
		half := make([]byte, size/2)
		var done atomic.Int32
		var slow []net.Conn
		for range 2 {
			c, _ := served(t, s)
			require.NoError(t, Request(c, Echo, size, 1))
			_, err := c.Write(half)
			require.NoError(t, err)
			slow = append(slow, c)
		}
		for range 10 {
			c, _ := served(t, s)
			go func() {
				if Exchange(c, Echo, make([]byte, size), 3, nil) == nil {
					done.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.Zero(t, done.Load(), "others wait in turn")
		short, _ := served(t, s)
		require.NoError(t, Exchange(short, Echo, make([]byte, maxOwn), 3, nil))
		require.NoError(t, stream(short, make([]byte, size), 3))
		require.NoError(t, slow[0].Close())
		synctest.Wait()
		require.EqualValues(t, 10, done.Load(), "a client that fails gives its turn back")
		require.Len(t, s.long, 1)
		_, err := slow[1].Write(half)
		require.NoError(t, err)
		_, err = io.ReadFull(slow[1], make([]byte, size))
		require.NoError(t, err)
		synctest.Wait()
		require.Len(t, s.long, 2)
	})
}
