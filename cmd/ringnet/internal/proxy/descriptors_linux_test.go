package proxy

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"

	"github.com/ringnet/ringnet/internal/passrights"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// returns fails the test if f never does.
func returns(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(hang.After):
		t.Fatal(what, "hangs")
	}
}

// lingering returns a TCP connection whose close blocks until the test ends.
func lingering(t *testing.T) int {
	t.Helper()
	small := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	}
	l, err := (&net.ListenConfig{Control: small}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
	require.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
	require.NoError(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: l.Addr().(*net.TCPAddr).Port}))
	peer, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = peer.Close() }) // with bytes unread: that resets it
	for err == nil {
		err = unix.Send(fd, make([]byte, 4096), unix.MSG_DONTWAIT)
	}
	require.ErrorIs(t, err, syscall.EAGAIN)
	return fd
}

// sendLingering sends such a descriptor, of which the receiver closes the last copy, unless it is faster than
// this process.
func sendLingering(t *testing.T, c *net.UnixConn) (closed <-chan struct{}, err error) {
	t.Helper()
	fd := lingering(t)
	_, _, err = c.WriteMsgUnix([]byte("x"), unix.UnixRights(fd), nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = unix.Close(fd)
	}()
	return done, err
}

// queueLingering sends one to whoever does not read yet.
func queueLingering(t *testing.T, c *net.UnixConn) {
	t.Helper()
	closed, err := sendLingering(t, c)
	require.NoError(t, err)
	<-closed
}

// listenUnix listens as a proxy does on a kernel that cannot keep descriptors away.
func listenUnix(t *testing.T) *net.UnixListener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	require.NoError(t, err)
	t.Cleanup(func() { go l.Close() })
	return l.(*net.UnixListener)
}

func dialUnix(t *testing.T, at net.Addr) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", at.String())
	require.NoError(t, err)
	t.Cleanup(func() { go c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(hang.After)))
	return c.(*net.UnixConn)
}

// serveEach serves each connection to a listener.
func serveEach(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

func echo(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
}

func echoes(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := c.Write([]byte("ping"))
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, "ping", string(got))
}

// lenient returns a proxy as on a kernel without SO_PASSRIGHTS: its Unix sockets take descriptors.
func lenient(t *testing.T, f Forwarding, l endpoint.Listener) *Proxy {
	t.Helper()
	p := newProxy(f, l, slog.New(slog.DiscardHandler))
	if f.To.Network == "unix" {
		p.dial = func(ctx context.Context) (endpoint.Conn, []ringnet.Reason, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", f.To.Address)
			if err != nil {
				return nil, nil, err
			}
			return c.(endpoint.Conn), nil, nil
		}
	}
	return p
}

// begin has p forward, until the test ends.
func begin(t *testing.T, p *Proxy) {
	t.Helper()
	go p.serve(func(error) {})
	go p.sweep()
	t.Cleanup(func() { returns(t, "Close", func() { p.Close() }) })
}

func requireEnded(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestNobodySendsDescriptorsToAProxy(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	if passrights.Set(fd, false) != nil {
		t.Skip("this kernel has no SO_PASSRIGHTS")
	}
	server := listenUnix(t)
	sent := make(chan error, 1)
	go serveEach(server, func(c net.Conn) {
		_, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil)
		sent <- err
	})
	f := Forwarding{
		Listen: endpoint.Endpoint{Network: "unix", Address: filepath.Join(t.TempDir(), "proxy")},
		To:     endpoint.Endpoint{Network: "unix", Address: server.Addr().String()},
	}
	p, err := Listen(t.Context(), f, slog.New(slog.DiscardHandler), func(error) {})
	require.NoError(t, err)
	defer p.Close()
	client := dialUnix(t, p.Addr())
	require.ErrorIs(t, <-sent, syscall.EPERM, "the server")
	_, _, err = client.WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil)
	require.ErrorIs(t, err, syscall.EPERM, "the client")
}

// threads is how many the process has.
func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(all)
}

// Clients that send descriptors whose close blocks lose their connections, and hold up nobody. Nor do they
// make the process have a thread for each.
func TestClientsThatSendDescriptorsHoldUpNobody(t *testing.T) {
	const clients = 4 * maxClosing
	server, l := listenUnix(t), listenUnix(t)
	go serveEach(server, echo)
	p := lenient(t, Forwarding{To: endpoint.Endpoint{Network: "unix", Address: server.Addr().String()}}, l)
	p.endTime = time.Millisecond
	begin(t, p)
	honest := dialUnix(t, l.Addr())
	echoes(t, honest)
	before := threads(t)
	var hostile []*net.UnixConn
	for range clients {
		c := dialUnix(t, l.Addr())
		echoes(t, c)
		hostile = append(hostile, c)
	}
	for _, c := range hostile {
		_, err := sendLingering(t, c)
		require.NoError(t, err)
		requireEnded(t, c)
	}
	require.Less(t, threads(t)-before, clients-maxClosing)
	echoes(t, honest)
	echoes(t, dialUnix(t, l.Addr()))
	returns(t, "now", func() { require.GreaterOrEqual(t, p.now(), 2) })
	returns(t, "Drain", func() {
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorContains(t, p.Drain(over, 0), "connections were cut off")
	})
}

func TestServersThatSendDescriptorsHoldUpNobody(t *testing.T) {
	server, l := listenUnix(t), listenUnix(t)
	go serveEach(server, func(c net.Conn) {
		if _, err := sendLingering(t, c.(*net.UnixConn)); err == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	})
	p := lenient(t, Forwarding{To: endpoint.Endpoint{Network: "unix", Address: server.Addr().String()}}, l)
	p.endTime = time.Millisecond
	begin(t, p)
	for range maxClosing + 1 {
		requireEnded(t, dialUnix(t, l.Addr()))
	}
	returns(t, "Close", p.Close)
}

// What is queued at a connection that the proxy does not read is closed with it.
func TestDescriptorsAtARefusedConnectionHoldUpNobody(t *testing.T) {
	for name, f := range map[string]Forwarding{
		"one too many": {MaxConnections: 1, To: endpoint.Endpoint{Network: "unix", Address: "/nowhere"}},
		"unreachable":  {To: endpoint.Endpoint{Network: "unix", Address: "/nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := listenUnix(t)
			p := lenient(t, f, l)
			p.endTime = time.Millisecond
			p.count = f.MaxConnections // all of them
			var all []*net.UnixConn
			for range maxClosing + 1 {
				c := dialUnix(t, l.Addr())
				queueLingering(t, c)
				all = append(all, c)
			}
			begin(t, p)
			for _, c := range all {
				requireEnded(t, c)
			}
			returns(t, "Close", p.Close)
		})
	}
}

// So are those of connections that are never accepted.
func TestDescriptorsInTheQueueOfAListenerHoldUpNobody(t *testing.T) {
	l := listenUnix(t)
	queueLingering(t, dialUnix(t, l.Addr()))
	require.NoError(t, l.SetDeadline(time.Unix(1, 0)))
	p := lenient(t, Forwarding{}, l)
	p.endTime = time.Millisecond
	begin(t, p)
	returns(t, "Wait", p.Wait)
}

// A client that does not send them is read as ever, whole, though its writes are of all sizes.
func TestStreamsOfUnixSocketsArriveWhole(t *testing.T) {
	server, l := listenUnix(t), listenUnix(t)
	go serveEach(server, echo)
	p := lenient(t, Forwarding{To: endpoint.Endpoint{Network: "unix", Address: server.Addr().String()}}, l)
	begin(t, p)
	c := dialUnix(t, l.Addr())
	want := make([]byte, 3*bufferLen+1)
	for i := range want {
		want[i] = byte(i * i >> 5)
	}
	go func() {
		for n, left := 1, want; len(left) > 0; n = 2*n + 1 {
			n = min(n, len(left))
			_, _ = c.Write(left[:n])
			left = left[n:]
		}
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, want, got)
}
