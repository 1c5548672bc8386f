package interop

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// overCPeer runs a test over rdma with the command of the peer that is written in C: see
// cpeer/main.c.
func overCPeer(t *testing.T, test func(t *testing.T, n network, cpeer func(args ...string) *exec.Cmd)) {
	t.Helper()
	overEachNetwork(t, func(t *testing.T, n network) {
		if n.name != "rdma" {
			t.Skip("it knows rdma alone")
		}
		path, err := filepath.Abs("../bin/cpeer")
		require.NoError(t, err)
		if _, err := os.Stat(path); err != nil && os.Getenv("RINGNET_REQUIRE_PROGRAMS") == "" {
			t.Skipf("%v: make bin/cpeer", err)
		}
		test(t, n, func(args ...string) *exec.Cmd { return exec.Command(path, args...) })
	})
}

// ways are options of cpeer by which its queue pair is lost never, or now and then, and then it asks for
// another, or the other side alone does.
var ways = map[string][]string{
	"one queue pair":   nil,
	"either side asks": {"lose=200000"},
	"the Go side asks": {"lose=200000", "wait=1"},
}

func TestAPeerInCEchoes(t *testing.T) {
	overCPeer(t, func(t *testing.T, n network, cpeer func(...string) *exec.Cmd) {
		for name, options := range ways {
			t.Run(name, func(t *testing.T) { requireEchoes(t, n, cpeer(append([]string{"listen", n.host, "0"}, options...)...)) })
		}
	})
}

func requireEchoes(t *testing.T, n network, listens *exec.Cmd) {
	out, err := listens.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, listens.Start())
	t.Cleanup(func() { _ = listens.Process.Kill(); _ = listens.Wait() })
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	port := strings.TrimSpace(strings.TrimPrefix(line, "listening at "))
	var d ringnet.Dialer
	var streams sync.WaitGroup
	for i := range 8 {
		streams.Go(func() {
			c, err := d.Dial(n.name, net.JoinHostPort(n.host, port))
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			sent := randomBytes(200_000)
			if i == 0 { // which is reset, for bytes have come back that nobody reads
				_, err := c.Write(sent[:5000])
				assert.NoError(t, err)
				_, err = io.ReadFull(c, make([]byte, 1000))
				assert.NoError(t, err)
				return
			}
			go func() {
				_, err := c.Write(sent)
				assert.NoError(t, err)
				assert.NoError(t, c.(*ringnet.Conn).CloseWrite())
			}()
			got, err := io.ReadAll(c)
			assert.NoError(t, err)
			assert.True(t, string(got) == string(sent), "%d of %d bytes came back, or others", len(got), len(sent))
		})
	}
	streams.Wait()
	ringnet.CloseIdleLinks()
	line, err = said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ended: goaway\n", line, "the peer has found no breach")
}

// received is what a server has read of a connection.
type received struct {
	bytes int64
	err   error
}

// echoes serves an echo, and tells what it has received.
func echoes(t *testing.T, n network) (host, port string, all <-chan received) {
	l := n.listen(t)
	got := make(chan received, 100)
	serveOn(t, l, func(c net.Conn) {
		n, err := io.Copy(c, c)
		_ = c.(*ringnet.Conn).CloseWrite()
		got <- received{n, err}
	})
	host, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return host, port, got
}

func TestAPeerInCSends(t *testing.T) {
	overCPeer(t, func(t *testing.T, n network, cpeer func(...string) *exec.Cmd) {
		for name, options := range ways {
			t.Run(name, func(t *testing.T) {
				host, port, all := echoes(t, n)
				const streams, size = 5, 300_000
				args := append([]string{"dial", host, port, fmt.Sprint("streams=", streams), fmt.Sprint("bytes=", size)}, options...)
				out, err := cpeer(args...).Output()
				require.NoError(t, err, "%s", out)
				require.Equal(t, options == nil, strings.HasPrefix(string(out), "ok, with 0 moves"), "%s", out)
				for range streams {
					require.Equal(t, received{size, nil}, <-all)
				}
			})
		}
	})
}

func TestAPeerInCResets(t *testing.T) {
	overCPeer(t, func(t *testing.T, n network, cpeer func(...string) *exec.Cmd) {
		host, port, all := echoes(t, n)
		out, err := cpeer("dial", host, port, "reset=20000").Output()
		require.NoError(t, err, "%s", out)
		require.ErrorIs(t, (<-all).err, syscall.ECONNRESET)
	})
}

func TestAPeerInCThatDoesNotGoOnIsLost(t *testing.T) {
	overCPeer(t, func(t *testing.T, n network, cpeer func(...string) *exec.Cmd) {
		host, port, all := echoes(t, n)
		out, err := cpeer("dial", host, port, "resume=0", "lose=1000", "bytes=10000000").Output()
		require.Error(t, err)
		require.Equal(t, "ended: it was to be lost\n", string(out))
		require.ErrorIs(t, (<-all).err, syscall.ECONNRESET)
	})
}

func TestAPeerInCThatBreaksTheProtocol(t *testing.T) {
	overCPeer(t, func(t *testing.T, n network, cpeer func(...string) *exec.Cmd) {
		host, port, all := echoes(t, n)
		for name, says := range map[string]string{
			"type":        "record of type 10",
			"bits":        "bits set that must be zero",
			"finack":      "FINACK for no end",
			"fin":         "the end of the stream after 1 bytes, with 0 received",
			"credit":      "CREDIT for 1 bytes after 0",
			"open":        "OPEN for stream 0, which exists",
			"unknown":     "there is no stream 5",
			"goaway":      "a second GOAWAY",
			"totals":      "acknowledgement of",
			"link-credit": "link credit for 0 data messages",
			"length":      "control message of 17 bytes",
			"empty":       "data message of 0 bytes",
			"new":         "data for a new ring when none was offered",
			"stream":      "there is no stream 5",
		} {
			out, err := cpeer("dial", host, port, "breach="+name).Output()
			require.Error(t, err, "%s: %s", name, out)
			require.Equal(t, "ended: the peer does not have the link any more\n", string(out), name)
			got := <-all
			require.ErrorIs(t, got.err, syscall.EPROTO, name)
			require.ErrorContains(t, got.err, says, name)
		}
		out, err := cpeer("dial", host, port, "version=4").Output()
		require.Error(t, err)
		require.Equal(t, "refused: version 4 of the ringnet protocol was offered, and the side that refuses it speaks version 3\n", string(out))
	})
}
