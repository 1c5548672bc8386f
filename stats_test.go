package ringnet

import (
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/hang"
)

// counting is a connection that has Stats.
type counting interface {
	net.Conn
	Stats() Stats
}

// overEachLeg runs a test over each network, and over what auto has: a link, and TCP.
func overEachLeg(t *testing.T, test func(t *testing.T, h host, carrier string)) {
	overEachNetwork(t, func(t *testing.T, h host) { test(t, h, h.network) })
	t.Run("auto over shm", func(t *testing.T) {
		better(t, sim.New(sim.Link{}), nil)
		test(t, host{"auto", "127.0.0.1"}, "shm")
	})
	t.Run("auto over tcp", func(t *testing.T) {
		better(t, nil, nil)
		test(t, host{"auto", "127.0.0.1"}, "tcp")
	})
}

// connect dials l and accepts the connection.
func connect(t *testing.T, h host, l net.Listener, d *Dialer) (client, server counting) {
	t.Helper()
	client = dial(t, d, h.network, l.Addr().String()).(counting)
	return client, accept(t, l).(counting)
}

// listenOn listens until the end of the test.
func listenOn(t *testing.T, h host, lc ListenConfig) net.Listener {
	t.Helper()
	l, err := lc.Listen(t.Context(), h.network, h.any())
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// ask sends n bytes there and back.
func ask(t *testing.T, client, server net.Conn, n int) {
	t.Helper()
	p := make([]byte, n)
	for _, way := range []struct{ from, to net.Conn }{{client, server}, {server, client}} {
		sent := make(chan error, 1)
		go func() {
			_, err := way.from.Write(p)
			sent <- err
		}()
		_, err := io.ReadFull(way.to, make([]byte, n))
		require.NoError(t, err)
		require.NoError(t, <-sent)
	}
}

func TestStatsTellTheRoundTripOfTCP(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("TCP's round trip is known on Linux alone")
	}
	better(t, nil, nil)
	h := host{"auto", "127.0.0.1"}
	client, server := connect(t, h, listenOn(t, h, ListenConfig{}), &Dialer{})
	ask(t, client, server, 1)
	require.Positive(t, client.Stats().RTT)
	require.Less(t, client.Stats().RTT, time.Minute)
	require.NoError(t, client.Close())
	require.Positive(t, client.Stats().RTT, "what it was in the end")
}

func TestStatsCountReadsAndWritesThatWaited(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		client, server := connect(t, h, listenOn(t, h, ListenConfig{}), &Dialer{})
		_, err := client.Write([]byte("hello"))
		require.NoError(t, err)
		require.Zero(t, client.Stats().WriteWaits, "there was room")

		_, err = io.ReadFull(server, make([]byte, 5))
		require.NoError(t, err)
		before := server.Stats().ReadWaits
		read := make(chan error, 1)
		go func() {
			_, err := server.Read(make([]byte, 1))
			read <- err
		}()
		hang.Unless(t, func() bool { return server.Stats().ReadWaits == before+1 })
		require.NoError(t, server.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-read, os.ErrDeadlineExceeded)
		require.Equal(t, before+1, server.Stats().ReadWaits)

		written := make(chan error, 1)
		go func() {
			_, err := client.Write(make([]byte, 8<<20)) // the server does not read
			written <- err
		}()
		hang.Unless(t, func() bool { return client.Stats().WriteWaits > 0 })
		require.NoError(t, client.SetWriteDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-written, os.ErrDeadlineExceeded)
	})
}

func TestStatsTellTheMemoryOfRings(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		client, server := connect(t, h, listenOn(t, h, ListenConfig{}), &Dialer{})
		first, _ := (&Config{}).RingMemory()
		require.Equal(t, first, client.Stats().Memory)
		require.NoError(t, server.Close())
		require.NoError(t, client.Close())
		hang.Unless(t, func() bool { return client.Stats().Memory == 0 })
	})
}
