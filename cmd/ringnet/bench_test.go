package main

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPair measures what two proxies cost between a client and a server: the
// command with shm between them, beside socat with TCP, and beside no proxy.
//
//	go test -run '^$' -bench Pair -count 5
func BenchmarkPair(b *testing.B) {
	for _, size := range []int{64, 4096} {
		b.Run(fmt.Sprintf("there-and-back/%dB", size), func(b *testing.B) {
			eachWay(b, "shm", serve(b, echo), func(b *testing.B, address string, _ ...*service) {
				benchmarkRoundTrips(b, dial(b, address), size)
			})
		})
	}
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("stream/%dKiB", size>>10), func(b *testing.B) {
			eachWay(b, "shm", serve(b, sink), func(b *testing.B, address string, _ ...*service) {
				benchmarkStream(b, dial(b, address), size)
			})
		})
	}
}

// eachWay measures the way to a server without proxies, by two proxies with a network between them, and, if
// that is shm, by two of socat's.
func eachWay(b *testing.B, between, to string, measure func(b *testing.B, address string, proxies ...*service)) {
	b.Run("direct", func(b *testing.B) { measure(b, to) })
	if between == "shm" {
		b.Run("socat", func(b *testing.B) { measure(b, startSocats(b, to)) })
	}
	b.Run("ringnet", func(b *testing.B) {
		client, server := startPair(b, between, "tcp://"+to)
		measure(b, client.address(0), client, server)
	})
}

func benchmarkRoundTrips(b *testing.B, c net.Conn, size int) {
	message := make([]byte, size)
	for b.Loop() {
		_, err := c.Write(message)
		require.NoError(b, err)
		_, err = io.ReadFull(c, message)
		require.NoError(b, err)
	}
}

// sink reads everything and then answers with one byte.
func sink(c *net.TCPConn) {
	buf := make([]byte, 256<<10)
	for {
		if _, err := c.Read(buf); err != nil {
			break
		}
	}
	_, _ = c.Write(buf[:1])
	_ = c.Close()
}

func benchmarkStream(b *testing.B, c *net.TCPConn, size int) {
	message := make([]byte, size)
	b.SetBytes(int64(size))
	b.ResetTimer() // with the time until the last byte arrives, which b.Loop would not count
	for range b.N {
		_, err := c.Write(message)
		require.NoError(b, err)
	}
	require.NoError(b, c.CloseWrite())
	_, err := io.ReadFull(c, message[:1])
	require.NoError(b, err)
}

// startSocats starts two socats, with TCP between them.
func startSocats(b *testing.B, to string) (address string) {
	program, err := exec.LookPath("socat")
	if err != nil {
		b.Skip("no socat (Debian: apt-get install socat): ", err)
	}
	for range 2 {
		address := freeAddress(b)
		cmd := exec.Command(program, "TCP-LISTEN:"+portOf(b, address)+",bind=127.0.0.1,fork,reuseaddr,nodelay", "TCP:"+to+",nodelay")
		require.NoError(b, cmd.Start())
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		awaitListener(b, address)
		to = address
	}
	return to
}

// freeAddress returns an address of TCP at which nobody listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// awaitListener waits until a process listens.
func awaitListener(t testing.TB, address string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			return
		}
		require.True(t, time.Now().Before(end), "%v", err)
	}
}
