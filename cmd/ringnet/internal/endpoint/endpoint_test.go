package endpoint

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Endpoint{
		"auto://:6380":              {"auto", ":6380"},
		"tcp://127.0.0.1:6379":      {"tcp", "127.0.0.1:6379"},
		"rdma6://[fe80::1%eth0]:80": {"rdma6", "[fe80::1%eth0]:80"},
		"shm://localhost:redis":     {"shm", "localhost:redis"},
		"unix:///run/redis.sock":    {"unix", "/run/redis.sock"},
	} {
		var got Endpoint
		require.NoError(t, got.UnmarshalText([]byte(text)))
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
}

func TestListenOnUnixSocketThatIsLeftOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	_, err = Endpoint{"unix", path}.Listen(t.Context(), Options{})
	require.ErrorContains(t, err, "address already in use", "somebody listens")

	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	ours, err := Endpoint{"unix", path}.Listen(t.Context(), Options{})
	require.NoError(t, err)
	require.NoError(t, ours.Close())

	require.NoError(t, os.WriteFile(path, []byte("not a socket"), 0o600))
	_, err = Endpoint{"unix", path}.Listen(t.Context(), Options{})
	require.Error(t, err)
	require.FileExists(t, path)
}
