package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// While the client sends, the proxy both writes to the server and reads from it, and the
// kernel reports the server's reset to only one of the two calls. (The client is one of
// shm, because the kernel would do the same to a client of TCP.)
func TestProxyPassesOnAResetWhileTheClientSends(t *testing.T) {
	requireShm(t)
	const half = "half a reply"
	reset := make(chan struct{})
	p := start(t, "proxy", "--listen", "shm://127.0.0.1:0", "--to", "tcp://"+serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte(half))
		<-reset
		_ = c.SetLinger(0)
		_ = c.Close()
	}))
	for range 20 {
		c, err := ringnet.DialTimeout("shm", p.address(0), patience)
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, len(half)))
		require.NoError(t, err)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = c.Write(make([]byte, 16<<20))
		}()
		reset <- struct{}{}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		requireReset(t, c)
		require.NoError(t, c.Close())
		<-sent
	}
}

// A reply is under way until its client has received all of it, and the client may ask for more. Meanwhile new
// connections are refused, and those who ask whether to send clients here are told so.
func TestProxyStopsWithoutLosingRepliesOfSlowClients(t *testing.T) {
	reply := make([]byte, 32<<20)
	_, _ = rand.Read(reply) // never fails
	client, server := startPair(t, "auto", "tcp://"+serve(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 4))
		_, _ = c.Write(reply)
		echo(c)
	}), "--metrics", "127.0.0.1:0")
	healthy := func(p *service) (status int, says string) {
		return fetched(t, strings.Replace(p.logged("serves metrics", 0)["url"].(string), "/metrics", "/healthz", 1))
	}
	slow := dial(t, client.address(0))
	write(t, slow, "more")
	got := make([]byte, len(reply))
	_, err := io.ReadFull(slow, got[:1])
	require.NoError(t, err)
	for _, p := range []*service{client, server} {
		status, says := healthy(p)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "forwards 1\n", says)
		p.terminate()
		p.logged("stops: waits for connections to end", 0)
		status, _ = healthy(p)
		require.Equal(t, http.StatusServiceUnavailable, status)
	}
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", client.address(0))
		if err == nil {
			c.Close() // the kernel had made it already
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}, patience, 20*time.Millisecond)
	_, err = io.ReadFull(slow, got[1:])
	require.NoError(t, err)
	require.True(t, bytes.Equal(reply, got))
	requireEcho(t, slow)
	require.NoError(t, slow.CloseWrite())
	requireEnd(t, slow, 0)
	require.NoError(t, client.wait(), client.said())
	require.NoError(t, server.wait(), server.said())
}

// A client that reads slowly takes less than a whole write of the proxy in the time of --idle.
func TestProxyDoesNotCallAConnectionIdleThatMovesSlowly(t *testing.T) {
	t.Parallel()
	const piece, every, pieces = 8 << 10, 200 * time.Millisecond, 40
	for _, network := range []string{"tcp", "unix", "shm"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			listen := "127.0.0.1:0"
			switch network {
			case "shm":
				requireShm(t)
			case "unix":
				listen = t.TempDir() + "/socket"
			}
			p := start(t, "proxy", "-v", "--idle", "4s", "--listen", network+"://"+listen, "--to", "tcp://"+serve(t, func(c *net.TCPConn) {
				_, _ = c.Write(make([]byte, 64<<20))
				_ = c.Close()
			}))
			dial := net.Dial
			if network == "shm" {
				dial = ringnet.Dial
			}
			c, err := dial(network, p.address(0))
			require.NoError(t, err)
			defer c.Close()
			if tcp, ok := c.(*net.TCPConn); ok {
				require.NoError(t, tcp.SetReadBuffer(64<<10))
			}
			require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			for range pieces {
				readExactly(t, c, piece)
				time.Sleep(every)
			}
			if got, _ := io.Copy(io.Discard, c); got < 60<<20 {
				t.Errorf("%d bytes after a slow start: %s", got, p.said())
			}
		})
	}
}

// A proxy that cannot write does not read either, and yet notices that the sender is gone.
func TestProxyPassesOnAResetWhileTheServerDoesNotRead(t *testing.T) {
	t.Parallel()
	for _, between := range []string{"shm", "tcp"} {
		t.Run(between, func(t *testing.T) {
			t.Parallel()
			if between == "shm" {
				requireShm(t)
			}
			address, accepted := serveOne(t)
			front, back := startPair(t, between, "tcp://"+address, "-v")
			client := dial(t, front.address(0))
			server := <-accepted
			defer server.Close()
			require.NoError(t, client.SetWriteDeadline(time.Now().Add(shortPause)))
			_, err := client.Write(make([]byte, 64<<20))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "everything between the two is full")
			require.NoError(t, client.SetLinger(0))
			require.NoError(t, client.Close())
			require.Equal(t, "reset", front.logged("ended", 0)["outcome"])
			require.Equal(t, "reset", back.logged("ended", 0)["outcome"])
		})
	}
}

// limited returns the command in a process of its own, whose limits a shell sets.
func limited(limits string, args ...string) *exec.Cmd {
	cmd := commandProcess(args...)
	cmd.Args = append([]string{"sh", "-c", limits + ` && exec "$0" "$@"`, cmd.Path}, args...)
	cmd.Path = "/bin/sh"
	return cmd
}

func TestServersOutliveAShortageOfDescriptors(t *testing.T) {
	server := startProcess(t, limited("ulimit -n 64", "--json", "perf", "--listen", "127.0.0.1:0"))
	address := server.logged("serves", 0)["address"].(string)
	var strangers []*net.TCPConn
	for range 100 {
		strangers = append(strangers, dial(t, address))
	}
	server.logged("cannot accept for the moment", 0)
	for _, c := range strangers {
		require.NoError(t, c.Close())
	}
	requireMeasured(t, measured(t, "--networks", "tcp", address), "tcp")
}

// Whoever asks for metrics again and again, over more connections than there may be, waits, and
// takes no descriptor of a connection that is forwarded.
func TestMetricsAreServedOverFewConnections(t *testing.T) {
	p := startProxy(t, serve(t, echo), "--metrics", "127.0.0.1:0")
	at, err := url.Parse(p.logged("serves metrics", 0)["url"].(string))
	require.NoError(t, err)
	ask := func() *net.TCPConn {
		c := dial(t, at.Host)
		_, err := io.WriteString(c, "HEAD /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
		require.NoError(t, err)
		return c
	}
	status := func(c net.Conn, within time.Duration) (string, error) {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(within)))
		return bufio.NewReader(c).ReadString('\n')
	}
	var first *net.TCPConn
	for range metricsConnections {
		first = ask()
		got, err := status(first, patience)
		require.NoError(t, err)
		require.Contains(t, got, "200 OK")
	}
	one := ask()
	_, err = status(one, shortPause)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "one more waits")
	requireEcho(t, dial(t, p.address(0)))
	require.NoError(t, first.Close())
	got, err := status(one, patience)
	require.NoError(t, err)
	require.Contains(t, got, "200 OK")
}
