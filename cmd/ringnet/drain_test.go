package main

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shortPause is how long a test waits for what has not to happen.
const shortPause = 1500 * time.Millisecond

// serveOne serves the first connection by a script of the test's, which gets it here.
func serveOne(t *testing.T) (address string, accepted <-chan *net.TCPConn) {
	t.Helper()
	conns := make(chan *net.TCPConn, 1)
	return serve(t, func(c *net.TCPConn) {
		_ = c.SetReadBuffer(64 << 10)
		conns <- c
	}), conns
}

// readExactly reads n bytes.
func readExactly(t *testing.T, c net.Conn, n int) {
	t.Helper()
	_, err := io.CopyN(io.Discard, c, int64(n))
	require.NoError(t, err)
}

// requireEnd reads n bytes and then the end of the stream.
func requireEnd(t *testing.T, c net.Conn, n int) {
	t.Helper()
	got, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	require.EqualValues(t, n, got)
}

// stopping starts a pair of proxies with a connection through them, which begin sets up. Then
// it tells both to stop.
func stopping(t *testing.T, begin func(client, server *net.TCPConn), flags ...string) (client, server *net.TCPConn, proxies []*service) {
	t.Helper()
	address, accepted := serveOne(t)
	front, back := startPair(t, "auto", "tcp://"+address, flags...)
	client = dial(t, front.address(0))
	server = <-accepted
	t.Cleanup(func() { server.Close() })
	require.NoError(t, server.SetDeadline(time.Now().Add(patience)))
	begin(client, server)
	proxies = []*service{front, back}
	for _, p := range proxies {
		p.terminate()
		p.logged("stops: waits for connections to end", 0)
	}
	return client, server, proxies
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
}

// Whatever a proxy stops ends in an error at both ends, never in the end of a stream.
func TestProxyThatDoesNotWaitResetsBothEnds(t *testing.T) {
	for name, how := range map[string]struct {
		signal syscall.Signal // 0: none but that to stop
		drain  string
	}{"cut": {syscall.SIGTERM, "1h"}, "killed": {syscall.SIGKILL, "1h"}, "late": {0, "50ms"}} {
		for _, ended := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				client, server, proxies := stopping(t, func(client, server *net.TCPConn) {
					write(t, client, "request")
					readExactly(t, server, len("request"))
					write(t, server, "half")
					readExactly(t, client, len("half"))
					if ended {
						require.NoError(t, client.CloseWrite())
						requireEnd(t, server, 0)
					}
				}, "--drain", how.drain)
				for _, p := range proxies {
					if how.signal != 0 {
						require.NoError(t, p.cmd.Process.Signal(how.signal))
					}
				}
				requireReset(t, client)
				if !ended {
					requireReset(t, server)
				}
				first, second := proxies[0].wait(), proxies[1].wait()
				require.Error(t, errors.Join(first, second), "when one has reset the connection, the other's has ended, too")
				if name != "killed" {
					require.Contains(t, proxies[0].said()+proxies[1].said(), "1 connections were cut off that had not ended in time")
				}
			})
		}
	}
}
