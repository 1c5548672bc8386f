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

func TestParseSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:6379":     `want NETWORK://HOST:PORT`,
		"tcp://6379":         `want HOST:PORT after tcp://`,
		"auto://::1:6379":    `with [] around an IPv6 address`,
		"unix://redis.sock":  `want an absolute path`,
		"udp://:53":          `unknown network "udp": want one of auto, auto4, auto6, shm, rdma, rdma4, rdma6, tcp, tcp4, tcp6, unix`,
		"":                   `want NETWORK://HOST:PORT`,
		"http://example.com": `unknown network "http"`,
	} {
		require.ErrorContains(t, new(Endpoint).UnmarshalText([]byte(text)), want, text)
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
