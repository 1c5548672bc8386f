package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever connects again and again fills no disk with the log.
func TestStrangersHaveAProxyLogFewLines(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, nobody.Close())
	unreachable := startProxy(t, nobody.Addr().String())
	required := start(t, "proxy", "--listen", "auto://127.0.0.1:0", "--to", "tcp://"+serve(t, echo), "--require", "shm")
	const times = 1000
	for _, p := range []*service{unreachable, required} {
		for range times {
			c, err := net.Dial("tcp", p.address(0))
			if err != nil {
				continue // was reset before
			}
			_, _ = c.Write([]byte("GET / HTTP/1.0\r\n\r\n")) // no dialer of auto's
			_, _ = io.Copy(io.Discard, c)                    // the proxy resets it
			_ = c.Close()
		}
		p.terminate()
		require.NoError(t, p.wait(), p.said())
		require.Less(t, strings.Count(p.said(), "\n"), times/2)
	}
}

// Who reads the log may stop to.
func TestAProxyForwardsWhileNobodyReadsItsLog(t *testing.T) {
	log, stderr, err := os.Pipe()
	require.NoError(t, err)
	defer log.Close()
	cmd := commandProcess("--json", "proxy", "-v", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://"+serve(t, echo))
	cmd.Stderr = stderr
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	require.NoError(t, stderr.Close())
	var forwards struct{ Address string }
	line, err := bufio.NewReaderSize(log, 16).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(line), &forwards))
	for range 1000 { // each of two lines; a pipe has room for 64 KiB
		c := dial(t, forwards.Address)
		requireEcho(t, c)
		require.NoError(t, c.Close())
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "it waits no longer for who reads its log")
}
