package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// metricsOf are those that a proxy serves.
func metricsOf(t *testing.T, p *service) string {
	t.Helper()
	resp, err := http.Get(p.logged("serves metrics", 0)["url"].(string))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
	return string(text)
}

func TestProxyTellsWhatCarriesConnectionsOfAuto(t *testing.T) {
	requireShm(t)
	client, server := startPair(t, "auto", "tcp://"+serve(t, echo), "-v", "--metrics", "127.0.0.1:0")
	requireEcho(t, dial(t, client.address(0)))
	began := server.logged("began", 0)
	require.Equal(t, "shm", began["accepted over"])
	require.Equal(t, "tcp", began["dialed over"])
	require.Regexp(t, `ringnet_proxy_accepted_total\{.*network="shm".*\} 1`, metricsOf(t, server))

	client = start(t, "proxy", "--listen", "tcp://127.0.0.1:0", "--to", "auto://"+server.address(0), "-v", "--metrics", "127.0.0.1:0")
	requireEcho(t, dial(t, client.address(0)))
	require.Equal(t, "shm", client.logged("began", 0)["dialed over"])
	require.Regexp(t, `ringnet_proxy_dialed_total\{.*network="shm".*\} 1`, metricsOf(t, client))
}

// Two forwardings that are told apart by nothing would have the same metrics, of which none could be served.
func TestProxyRefusesTheSameForwardingTwice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "forwardings")
	line := "--listen tcp://127.0.0.1:0 --to tcp://127.0.0.1:"
	require.NoError(t, os.WriteFile(file, []byte(line+"1\n"+line+"1 --idle 1h\n"), 0o600))
	out, err := commandProcess("proxy", "--file", file, "--metrics", "nowhere:0").CombinedOutput()
	require.Equal(t, misuse, err.(*exec.ExitError).ExitCode())
	require.Contains(t, string(out), ":2: another line forwards from tcp://127.0.0.1:0 to tcp://127.0.0.1:1")

	require.NoError(t, os.WriteFile(file, []byte(line+"1\n"+line+"2\n"), 0o600))
	p := start(t, "proxy", "--file", file, "--metrics", "127.0.0.1:0")
	require.Contains(t, metricsOf(t, p), `ringnet_proxy_connections{listen="tcp://127.0.0.1:0",to="tcp://127.0.0.1:2"} 0`)
}
