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
	"regexp"
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
	for _, between := range []string{"auto", "shm", "tcp", "unix", "rdma"} {
		t.Run(between, func(t *testing.T) {
			switch between {
			case "shm":
				requireShm(t)
			case "rdma":
				requireRDMA(t)
			}
			client, server := startPair(t, between, "tcp://"+serve(t, sum))
			for _, n := range []int{0, 1, 4096, 5<<20 + 1} {
				requireSum(t, dial(t, client.address(0)), n)
			}
			if between == "unix" {
				require.NoError(t, server.stop(), server.said())
				require.NoFileExists(t, server.address(0))
			}
		})
	}
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

func TestProxyResetsConnectionsOnWhichNothingMoves(t *testing.T) {
	t.Parallel()
	for outcome, flag := range map[string]string{"idle": "--idle=5s", "drained": "--drain-idle=100ms"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, serve(t, echo), "-v", "--drain=1h", flag)
			c := dial(t, p.address(0))
			requireEcho(t, c)
			if outcome == "drained" {
				p.terminate()
			}
			requireReset(t, c)
			require.Equal(t, outcome, p.logged("ended", 0)["outcome"])
			require.NoError(t, p.stop(), p.said())
		})
	}
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

// Where a listener has none of the networks, it would refuse every connection.
func TestProxyDoesNotListenWithoutANetworkThatIsRequired(t *testing.T) {
	requireShm(t)
	for required, networks := range map[string]string{"rdma": "shm,tcp", "shm": "rdma,tcp", "shm,rdma": "tcp"} {
		p := commandProcess("proxy", "--listen", "auto://127.0.0.1:0", "--to", "tcp://127.0.0.1:1", "--require", required)
		p.Env = append(p.Env, "RINGNET_NETWORKS="+networks)
		out, err := p.CombinedOutput()
		require.Error(t, err)
		for network := range strings.SplitSeq(required, ",") {
			require.Contains(t, string(out), network+": switched off")
		}
	}
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
	const free = "127.0.0.1:0"
	changes := freeAddress(t)
	line := func(listen, to string) string { return "--listen tcp://" + listen + " --to tcp://" + to }
	says("# three of them", line(free, a)+"   # which stays", "", strings.ReplaceAll(line(changes, a), " tcp", "=tcp"), line(free, b))
	p := start(t, "proxy", "--file", path, "--metrics", "127.0.0.1:0")
	kept, gone := p.address(0), p.address(2)
	held := []*net.TCPConn{requireNamed(t, kept, "a"), requireNamed(t, changes, "a"), requireNamed(t, gone, "b")}

	says(line(changes, b)+" --max-connections 7", line(free, a))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.EqualValues(t, 2, p.logged("has read the file again", 0)["forwardings"])
	p.logged("forwards", 3)
	requireNamed(t, changes, "b").Close()
	requireNamed(t, kept, "a").Close()
	_, err := net.Dial("tcp", gone)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	for _, c := range held {
		requireEcho(t, c)
	}

	says("--listen nonsense")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.Contains(t, p.logged("cannot do all that the file says", 0)["error"], ":1: --listen")
	requireNamed(t, changes, "b").Close()

	text := metricsOf(t, p)
	connections := regexp.MustCompile(`(?m)^ringnet_proxy_connections\{listen="tcp://(.*)",to="tcp://(.*)"\} `).FindAllStringSubmatch(text, -1)
	require.ElementsMatch(t, [][2]string{{free, a}, {changes, b}}, [][2]string{[2]string(connections[0][1:]), [2]string(connections[1][1:])})
	require.Len(t, connections, 2)
	for _, c := range held {
		require.NoError(t, c.CloseWrite())
		requireEnd(t, c, 0)
	}
}

// metricsOf are those that a proxy serves.
func metricsOf(t *testing.T, p *service) string {
	t.Helper()
	status, text := fetched(t, p.logged("serves metrics", 0)["url"].(string))
	require.Equal(t, http.StatusOK, status, text)
	return text
}

// fetched is what a URL has.
func fetched(t *testing.T, url string) (status int, text string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// Of connections of auto the log and the metrics tell what carries them.
func TestProxyServesMetrics(t *testing.T) {
	requireShm(t)
	front, back := startPair(t, "auto", "auto://"+serve(t, echo), "-v", "--metrics", "127.0.0.1:0")
	c := dial(t, front.address(0))
	requireEcho(t, c)
	require.NoError(t, c.Close())
	require.Equal(t, "shm", front.logged("began", 0)["dialed over"])
	began := back.logged("began", 0)
	require.Equal(t, []any{"shm", "tcp"}, []any{began["accepted over"], began["dialed over"]})
	require.Contains(t, fmt.Sprint(began["passed over"]), "rdma: ")
	back.logged("ended", 0)
	requireEcho(t, dial(t, front.address(0)))

	require.Regexp(t, `ringnet_proxy_dialed_total\{.*network="shm".*\} 2`, metricsOf(t, front))
	text := metricsOf(t, back)
	for _, want := range []string{
		`ringnet_proxy_connections\{.*\} 1`,
		`ringnet_proxy_accepted_total\{listen="auto://127.0.0.1:0",network="shm",to="auto://.*"\} 2`,
		`ringnet_proxy_dialed_total\{.*network="tcp".*\} 2`,
		`ringnet_proxy_passed_over_total\{code="[a-z-]+",.*network="rdma".*\} [12]`,
		`ringnet_proxy_ended_total\{.*outcome="finished".*\} 1`,
		`ringnet_proxy_ended_total\{.*outcome="unreachable".*\} 0`,
		`ringnet_proxy_bytes_total\{direction="requests",.*\} 8`,
		`ringnet_proxy_bytes_total\{direction="replies",.*\} 8`,
		`ringnet_links\{network="shm"\} 1`,
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
