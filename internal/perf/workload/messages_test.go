package workload

import (
	"errors"
	"net"
	"testing"
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
	times := make([]time.Duration, 3)
	require.NoError(t, Exchange(c, Echo, []byte("sent and got"), 3, times))
	require.NoError(t, Exchange(c, Work, make([]byte, 100), 3, times))
	require.NotContains(t, times, time.Duration(0))
	require.NoError(t, Exchange(c, Echo, make([]byte, 100), 6, times), "two for each time")
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
