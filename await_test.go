package ringnet

import (
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAwaitReadOverEachCarrier(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not tell")
	}
	overEachCarrier(t, func(_ string, connect func() (client, server net.Conn)) {
		client, server := connect()
		awaited := make(chan error, 1)
		await := func() { awaited <- client.(interface{ AwaitRead() error }).AwaitRead() }
		go await()
		time.Sleep(10 * time.Millisecond)
		require.Empty(t, awaited)
		_, err := server.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, <-awaited)
		n, err := client.Read(make([]byte, 2))
		require.NoError(t, err)
		require.Equal(t, 1, n, "it has taken nothing")

		require.NoError(t, client.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		go await()
		err = <-awaited
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var op *net.OpError
		require.True(t, errors.As(err, &op))
		require.Equal(t, "read", op.Op)

		require.NoError(t, client.SetReadDeadline(time.Time{}))
		go await()
		require.NoError(t, server.(interface{ SetLinger(int) error }).SetLinger(0))
		require.NoError(t, server.Close())
		require.NoError(t, <-awaited)
		_, err = client.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "the error is Read's")

		require.NoError(t, client.Close())
		go await()
		require.NoError(t, <-awaited)
	})
}

func TestPeerUserIsThatOfThePeersProcess(t *testing.T) {
	overEachCarrier(t, func(carrier string, connect func() (client, server net.Conn)) {
		for _, c := range bothOf(connect()) {
			uid, known := c.(interface{ PeerUser() (uint32, bool) }).PeerUser()
			require.Equal(t, carrier == "shm", known)
			if known {
				require.EqualValues(t, os.Geteuid(), uid)
			}
			require.NoError(t, c.Close())
			_, _ = c.(interface{ PeerUser() (uint32, bool) }).PeerUser()
		}
	})
}

func bothOf(client, server net.Conn) []net.Conn { return []net.Conn{client, server} }
