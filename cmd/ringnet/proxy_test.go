package main

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// sum reads to the end of what the client sends, and answers with its SHA-256.
func sum(c *net.TCPConn) {
	h := sha256.New()
	_, _ = io.Copy(h, c)
	_, _ = c.Write(h.Sum(nil))
	_ = c.Close()
}

type halfCloser interface {
	io.ReadWriter
	CloseWrite() error
}

// requireSum sends n bytes to a server that runs sum, and checks the answer.
func requireSum(t *testing.T, c halfCloser, n int) {
	t.Helper()
	sent := make([]byte, n)
	_, _ = rand.Read(sent) // never fails
	_, err := c.Write(sent)
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	want := sha256.Sum256(sent)
	require.Equal(t, want[:], got)
}

// requireShm skips a test where there is no shared memory.
func requireShm(t *testing.T) {
	t.Helper()
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// requireRDMA skips a test where there is no RDMA device.
func requireRDMA(t *testing.T) {
	t.Helper()
	if softroceAddress() != "" {
		return
	}
	if os.Getenv("RINGNET_REQUIRE_RDMA") != "" {
		t.Fatal("RINGNET_REQUIRE_RDMA is set, but not SOFTROCE_ADDR")
	}
	t.Skip("no RDMA device: SOFTROCE_ADDR is not set; bin/softroce runs this where there is one")
}

func TestProxyPairMovesBytesAndPassesOnTheirEnd(t *testing.T) {
	for _, between := range []string{"auto", "shm", "tcp", "rdma"} {
		t.Run(between, func(t *testing.T) {
			switch between {
			case "shm":
				requireShm(t)
			case "rdma":
				requireRDMA(t)
			}
			client, _ := startPair(t, between, "tcp://"+serve(t, sum))
			for _, n := range []int{0, 1, 4096, 5<<20 + 1} {
				requireSum(t, dial(t, client.address(0)), n)
			}
		})
	}
}

func TestProxyUnixSocketsAtBothEnds(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "proxy", "--listen", "unix://"+dir+"/front", "--to", "unix://"+dir+"/back")
	require.Equal(t, dir+"/front", p.address(0))
	l, err := net.Listen("unix", dir+"/back")
	require.NoError(t, err)
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			c.Close()
		}
		served <- err
	}()
	c, err := net.Dial("unix", dir+"/front")
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("there and back"))
	require.NoError(t, err)
	require.NoError(t, c.(*net.UnixConn).CloseWrite())
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "there and back", string(got))
	require.NoError(t, <-served)
	require.NoError(t, p.stop(), p.said())
	require.NoFileExists(t, dir+"/front")
}

// requireRefused connects to a proxy that resets the connection, perhaps before connect has
// returned.
func requireRefused(t *testing.T, address string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err == nil {
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err = io.Copy(io.Discard, c)
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// requireReset reads to an error that is not the end of the stream.
func requireReset(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestProxyResetsClientsWhenNobodyListensBehind(t *testing.T) {
	nobody := freeAddress(t)
	client, server := startPair(t, "auto", "tcp://"+nobody)
	requireRefused(t, client.address(0))
	entry := server.logged("cannot connect", 0)
	require.Contains(t, entry["error"], "connection refused")
	require.Equal(t, "tcp://"+nobody, entry["to"])
}

// What a server sends before it closes with requests unread reaches the client.
func TestProxyDeliversRepliesOfAServerThatDoesNotWantMore(t *testing.T) {
	const reply = "too much"
	client, _ := startPair(t, "auto", "tcp://"+serve(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1<<20))
		_, _ = c.Write([]byte(reply))
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}))
	c := dial(t, client.address(0))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = c.Write(make([]byte, 8<<20))
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, reply, string(got))
	<-sent
}

func TestProxyRefusesMoreConnectionsThanItMayHave(t *testing.T) {
	p := startProxy(t, serve(t, echo), "--max-connections", "2", "-v")
	var held []*net.TCPConn
	for range 2 {
		c := dial(t, p.address(0))
		requireEcho(t, c)
		held = append(held, c)
	}
	requireRefused(t, p.address(0))
	p.logged("refuses connections until others end", 0)
	require.NoError(t, held[0].Close())
	p.logged("ended", 0)
	requireEcho(t, dial(t, p.address(0)))
}

func requireEcho(t *testing.T, c io.ReadWriter) {
	t.Helper()
	_, err := c.Write([]byte("echo"))
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, "echo", string(got))
}

func TestProxyResetsIdleConnections(t *testing.T) {
	p := startProxy(t, serve(t, echo), "--idle", "5s", "-v")
	c := dial(t, p.address(0))
	requireEcho(t, c)
	requireReset(t, c)
	require.Equal(t, "idle", p.logged("ended", 0)["outcome"])
}

func TestProxyRequiresANetwork(t *testing.T) {
	requireShm(t)
	p := start(t, "proxy", "--listen", "auto://127.0.0.1:0", "--to", "tcp://"+serve(t, echo), "--require", "shm,rdma")
	requireRefused(t, p.address(0))
	require.Contains(t, p.logged("refused a connection", 0)["error"], "has connected over tcp, but shm or rdma is required")
	c, err := ringnet.Dial("shm", p.address(0))
	require.NoError(t, err)
	defer c.Close()
	requireEcho(t, c)

	// The server has TCP alone.
	p = start(t, "proxy", "--listen", "tcp://127.0.0.1:0", "--to", "auto://"+serve(t, echo), "--require", "shm,rdma")
	requireRefused(t, p.address(0))
	reason := p.logged("cannot connect", 0)["error"]
	require.Contains(t, reason, "shm: ")
	require.Contains(t, reason, "; rdma: ")
}

// naming is a server whose first byte to a client is its name.
func naming(t *testing.T, name string) string {
	t.Helper()
	return serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte(name))
		echo(c)
	})
}

// requireNamed requires that a new connection leads to the server of the name, and returns it.
func requireNamed(t *testing.T, address, name string) *net.TCPConn {
	t.Helper()
	c := dial(t, address)
	got := make([]byte, 1)
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, name, string(got))
	return c
}

func TestProxyReadsItsFileAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "forwardings")
	a, b := naming(t, "a"), naming(t, "b")
	says := func(lines ...string) {
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	}
	kept, changed, gone := freeAddress(t), freeAddress(t), freeAddress(t)
	line := func(listen, to string) string { return "--listen tcp://" + listen + " --to tcp://" + to }
	says("# three of them", line(kept, a)+"   # which stays", "", strings.ReplaceAll(line(changed, a), " tcp", "=tcp"), line(gone, a))
	p := start(t, "proxy", "--file", path, "--metrics", "127.0.0.1:0")
	p.logged("forwards", 2)
	var held []*net.TCPConn
	for _, address := range []string{kept, changed, gone} {
		held = append(held, requireNamed(t, address, "a"))
	}

	says(line(changed, b)+" --max-connections 7", line(kept, a))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.EqualValues(t, 2, p.logged("has read the file again", 0)["forwardings"])
	p.logged("forwards", 3)
	requireNamed(t, changed, "b").Close()
	requireNamed(t, kept, "a").Close()
	_, err := net.Dial("tcp", gone)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	for _, c := range held {
		requireEcho(t, c)
	}

	says("--listen nonsense")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.Contains(t, p.logged("cannot do all that the file says", 0)["error"], ":1: --listen")
	requireNamed(t, changed, "b").Close()

	text := metricsOf(t, p)
	require.Regexp(t, `(?m)^ringnet_proxy_connections\{listen="tcp://`+kept+`",to="tcp://`+a+`"\} `, text)
	require.NotContains(t, text, gone)
	for _, c := range held {
		require.NoError(t, c.CloseWrite())
		requireEnd(t, c, 0)
	}
}

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
	require.Equal(t, "shm", client.logged("began", 0)["dialed over"])
	require.Regexp(t, `ringnet_proxy_dialed_total\{.*network="shm".*\} 1`, metricsOf(t, client))
}

// Two forwardings that are told apart by nothing would have the same metrics, of which none could be served.
func TestProxyRefusesTheSameForwardingTwice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "forwardings")
	line := "--listen tcp://127.0.0.1:0 --to tcp://127.0.0.1:"
	require.NoError(t, os.WriteFile(file, []byte(line+"1\n"+line+"1 --idle 1h\n"), 0o600))
	_, errs, status := ringnetCommand(t, "proxy", "--file", file, "--metrics", "nowhere:0")
	require.Equal(t, misuse, status)
	require.Contains(t, errs, ":2: another line forwards from tcp://127.0.0.1:0 to tcp://127.0.0.1:1")

	require.NoError(t, os.WriteFile(file, []byte(line+"1\n"+line+"2\n"), 0o600))
	p := start(t, "proxy", "--file", file, "--metrics", "127.0.0.1:0")
	require.Contains(t, metricsOf(t, p), `ringnet_proxy_connections{listen="tcp://127.0.0.1:0",to="tcp://127.0.0.1:2"} 0`)
}

func TestProxyServesMetrics(t *testing.T) {
	p := start(t, "proxy", "-v", "--metrics", "127.0.0.1:0", "--listen", "tcp://127.0.0.1:0", "--to", "auto://"+serve(t, echo))
	c := dial(t, p.address(0))
	requireEcho(t, c)
	require.NoError(t, c.Close())
	require.Contains(t, fmt.Sprint(p.logged("began", 0)["passed over"]), "rdma: ")
	p.logged("ended", 0)
	held := dial(t, p.address(0))
	requireEcho(t, held)

	text := metricsOf(t, p)
	for _, want := range []string{
		`ringnet_proxy_connections\{.*\} 1`,
		`ringnet_proxy_accepted_total\{listen="tcp://127.0.0.1:0",network="tcp",to="auto://.*"\} 2`,
		`ringnet_proxy_dialed_total\{.*network="tcp".*\} 2`,
		`ringnet_proxy_passed_over_total\{code="[a-z-]+",.*network="rdma".*\} [12]`,
		`ringnet_proxy_ended_total\{.*outcome="finished".*\} 1`,
		`ringnet_proxy_ended_total\{.*outcome="unreachable".*\} 0`,
		`ringnet_proxy_bytes_total\{direction="requests",.*\} 8`,
		`ringnet_proxy_bytes_total\{direction="replies",.*\} 8`,
		`ringnet_links\{network="shm"\} 0`,
		`ringnet_memory_limit_bytes \d`,
		`ringnet_devices_read 1`,
		`go_goroutines \d`,
	} {
		require.Regexp(t, `(?m)^`+want, text)
	}
}

// Whoever connects to the metrics takes neither the proxy's descriptors nor its goroutines for
// ever.
func TestMetricsServerGivesClientsNoEndlessTime(t *testing.T) {
	s := newMetricsServer(nil)
	for name, limit := range map[string]time.Duration{
		"header": s.ReadHeaderTimeout, "request": s.ReadTimeout, "answer": s.WriteTimeout, "between requests": s.IdleTimeout,
	} {
		require.Positive(t, limit, name)
		require.LessOrEqual(t, limit, 2*time.Minute, name)
	}
}

func TestProxyTellsSystemdWhenItServesAndWhenItStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, l.SetReadDeadline(time.Now().Add(patience)))
	t.Setenv("NOTIFY_SOCKET", path)
	p := startProxy(t, "127.0.0.1:1")
	next := func() string {
		b := make([]byte, 100)
		n, err := l.Read(b)
		require.NoError(t, err)
		return string(b[:n])
	}
	require.Equal(t, "READY=1", next())
	p.terminate()
	require.Equal(t, "STOPPING=1", next())
}
