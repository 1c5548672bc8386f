//go:build linux

package integration_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// TestMain plays a role if this process was started for one, and else runs the tests.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rdmaAddr returns an IPv4 address of an RDMA device.
func rdmaAddr(t testing.TB) string {
	t.Helper()
	return requireEnv(t, "SOFTROCE_ADDR")
}

// requireEnv returns the value of a variable that tools/softroce sets where a test has what
// it needs.
func requireEnv(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	unless(t, value != "", name+" is not set; bin/softroce runs this where there is an RDMA device")
	return value
}

// unless skips a test that lacks what it needs, or fails it if it is required to run.
func unless(t testing.TB, ok bool, why string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("RINGNET_REQUIRE_RDMA") == "1":
		t.Fatal("RINGNET_REQUIRE_RDMA=1, but " + why)
	default:
		t.Skip(why)
	}
}

// times returns how often to repeat something: n times, or more in a soak.
func times(n, soak int) int {
	if os.Getenv("RINGNET_SOAK") == "1" {
		return soak
	}
	return n
}

// listen listens at an RDMA address until the end of the test.
func listen(t testing.TB, lc ringnet.ListenConfig) net.Listener {
	t.Helper()
	l, err := lc.Listen(t.Context(), "rdma", net.JoinHostPort(rdmaAddr(t), "0"))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// pair returns two ends of one connection in this process. The end of the test closes them.
func pair(t testing.TB) (dialer, accepter *ringnet.Conn) {
	t.Helper()
	l := listen(t, ringnet.ListenConfig{})
	defer l.Close()
	d, err := ringnet.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d.(*ringnet.Conn), accept(t, l)
}

// accept accepts a connection, which the end of the test closes.
func accept(t testing.TB, l net.Listener) *ringnet.Conn {
	t.Helper()
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*ringnet.Conn)
}

// atOnce runs the functions at once, and fails the test if one returns an error.
func atOnce(t testing.TB, fs ...func() error) {
	t.Helper()
	errs := make([]error, len(fs))
	var all sync.WaitGroup
	for i, f := range fs {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// stream is an endless stream of bytes, and a position in it. Bytes at the wrong position
// differ from those that belong there.
type stream struct {
	seed uint64
	pos  int
}

// streamBytes are the bytes of all streams, which begin at different places.
var streamBytes = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20-3) // a prime
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

// next returns the next n bytes.
func (s *stream) next(n int) []byte {
	all, b := streamBytes(), make([]byte, 0, n)
	for len(b) < n {
		piece := all[(s.seed+uint64(s.pos))%uint64(len(all)):]
		piece = piece[:min(n-len(b), len(piece))]
		b = append(b, piece...)
		s.pos += len(piece)
	}
	return b
}

// check returns an error unless b is what comes next.
func (s *stream) check(b []byte) error {
	from := s.pos
	for i, want := range s.next(len(b)) {
		if b[i] != want {
			return fmt.Errorf("wrong: byte %d is %#x, want %#x", from+i, b[i], want)
		}
	}
	return nil
}

// receive reads the next n bytes of the stream from r.
func (s *stream) receive(r io.Reader, n int) error {
	b := make([]byte, 32<<10)
	for n > 0 {
		m, err := io.ReadFull(r, b[:min(n, len(b))])
		n -= m
		if wrong := s.check(b[:m]); wrong != nil {
			return wrong
		}
		if err != nil {
			return fmt.Errorf("%d bytes short: %w", n, err)
		}
	}
	return nil
}

// receiveAll is receive, and then requires io.EOF.
func (s *stream) receiveAll(r io.Reader, n int) error {
	if err := s.receive(r, n); err != nil {
		return err
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("%d bytes and %v, want io.EOF", n, err)
	}
	return nil
}

// drain receives what is left of the stream, up to its end: io.EOF, for which it returns nil, or
// an error.
func (s *stream) drain(r io.Reader) error {
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		if wrong := s.check(b[:n]); wrong != nil {
			return wrong
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// send writes the next n bytes of the stream to w, in Writes of at most the
// given size.
func (s *stream) send(w io.Writer, n, most int) error {
	for n > 0 {
		b := s.next(min(n, most))
		n -= len(b)
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// requireEcho requires that each end reads what the other writes.
func requireEcho(t testing.TB, a, b net.Conn) {
	t.Helper()
	const n = 1000
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		require.NoError(t, (&stream{}).send(way[0], n, n))
		require.NoError(t, (&stream{}).receive(way[1], n))
	}
}

// echoed sends n bytes, and returns an error unless they come back.
func echoed(c net.Conn, n int) error {
	seed := rand.Uint64()
	if err := (&stream{seed: seed}).send(c, n, n); err != nil {
		return err
	}
	return (&stream{seed: seed}).receive(c, n)
}

// echoAll sends back what arrives on connections that l accepts.
func echoAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c) // the dialer notices an error
		}()
	}
}

// small is a configuration with so little memory that many connections fit into a small
// machine.
var small = &ringnet.Config{RecvBuffer: 4096, SendBuffer: 4096, SendQueue: 16, RecvQueue: 4}

// requireOpError requires package net's error around the given cause.
func requireOpError(t testing.TB, err error, op, addr string, cause error) {
	t.Helper()
	require.IsType(t, &net.OpError{}, err)
	e := err.(*net.OpError)
	require.Equal(t, op, e.Op)
	require.Equal(t, "rdma", e.Net)
	require.Equal(t, addr, e.Addr.String())
	require.ErrorIs(t, err, cause)
}

func TestIPv6(t *testing.T) {
	addr := requireEnv(t, "SOFTROCE_ADDR6")
	for _, network := range []string{"rdma", "rdma6"} {
		requireConnects(t, network, addr, addr)
		requireConnects(t, network, "", addr)
	}
	_, err := ringnet.Dial("rdma4", net.JoinHostPort(addr, "7"))
	require.ErrorContains(t, err, "no suitable address")

	// At all addresses of one family, beside a listener at those of the other.
	four, err := ringnet.Listen("rdma4", ":0")
	require.NoError(t, err)
	defer four.Close()
	_, port, err := net.SplitHostPort(four.Addr().String())
	require.NoError(t, err)
	six, err := ringnet.Listen("rdma6", ":"+port)
	require.NoError(t, err)
	defer six.Close()
	for host, l := range map[string]net.Listener{rdmaAddr(t): four, addr: six} {
		d, err := ringnet.Dial("rdma", net.JoinHostPort(host, port))
		require.NoError(t, err)
		defer d.Close()
		requireEcho(t, d, accept(t, l))
	}
}

func TestIPv6WithAZone(t *testing.T) {
	addr := linkLocal(t)
	requireConnects(t, "rdma", addr, addr)
	requireConnects(t, "rdma6", "::", addr)
}

// requireConnects requires that a listener at one address can be dialed at the other, and
// that both ends know the addresses.
func requireConnects(t *testing.T, network, listenAt, dialAt string) {
	t.Helper()
	l, err := ringnet.Listen(network, net.JoinHostPort(listenAt, "0"))
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	addr := net.JoinHostPort(dialAt, port)
	d, err := ringnet.Dial(network, addr)
	require.NoError(t, err)
	defer d.Close()
	a := accept(t, l)
	requireEcho(t, d, a)
	require.Equal(t, addr, d.RemoteAddr().String())
	require.Equal(t, addr, a.LocalAddr().String())
	require.Equal(t, d.LocalAddr(), a.RemoteAddr())
	require.Equal(t, "rdma", a.RemoteAddr().Network())
}

// linkLocal returns the link-local address of the device's interface, with a zone.
func linkLocal(t *testing.T) string {
	t.Helper()
	name := requireEnv(t, "SOFTROCE_NETDEV")
	ifi, err := net.InterfaceByName(name)
	require.NoError(t, err)
	addrs, err := ifi.Addrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := netip.MustParsePrefix(a.String()).Addr(); ip.Is6() && ip.IsLinkLocalUnicast() {
			return ip.WithZone(name).String()
		}
	}
	unless(t, false, name+" has no link-local address")
	return ""
}
