package ringnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/sim"
)

// options are the methods of a *net.TCPConn that programs look for by a type assertion.
type options interface {
	net.Conn
	SetNoDelay(bool) error
	SetKeepAlive(bool) error
	SetKeepAlivePeriod(time.Duration) error
	SetKeepAliveConfig(net.KeepAliveConfig) error
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}

// setAll calls each method, and returns the errors.
func setAll(c options) []error {
	return []error{
		c.SetNoDelay(false),
		c.SetKeepAlive(true),
		c.SetKeepAlivePeriod(time.Minute),
		c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Minute}),
		c.SetReadBuffer(64 << 10),
		c.SetWriteBuffer(64 << 10),
	}
}

func TestOptionsOfTCPAreNilUntilAConnectionIsClosed(t *testing.T) {
	overEachCarrier(t, func(_ string, connect func() (client, server net.Conn)) {
		c, _ := connect()
		requireOptions(t, c)
		if own, ok := c.(*AutoConn).NetConn().(*Conn); ok {
			for _, err := range setAll(own) {
				require.ErrorIs(t, err, net.ErrClosed)
			}
		}
	})
}

// requireOptions requires that c takes the options while it is open.
func requireOptions(t *testing.T, c net.Conn) {
	t.Helper()
	require.Implements(t, (*options)(nil), c)
	for _, err := range setAll(c.(options)) {
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	for _, err := range setAll(c.(options)) {
		require.ErrorIs(t, err, net.ErrClosed)
		require.IsType(t, &net.OpError{}, err)
	}
}

// WriteBuffers of auto is that of the connection that carries it, or that of package net.
func TestAutoWritesBuffersOverEachCarrier(t *testing.T) {
	overEachCarrier(t, func(_ string, connect func() (client, server net.Conn)) {
		client, server := connect()
		c := client.(*AutoConn)
		bufs := net.Buffers{[]byte("head"), nil, []byte("er and body")}
		n, err := c.WriteBuffers(&bufs)
		require.NoError(t, err)
		require.EqualValues(t, 15, n)
		require.EqualValues(t, n, c.Stats().BytesWritten)
		require.Empty(t, bufs)
		requireNext(t, server, "header and body")
	})
}

// Every method of a *net.TCPConn is one of auto's connections, whatever carries them: programs
// look for them by type assertions.
func TestAutoHasEveryMethodOfATCPConn(t *testing.T) {
	tcp, auto := reflect.TypeFor[*net.TCPConn](), reflect.TypeFor[*AutoConn]()
	for i := range tcp.NumMethod() {
		m := tcp.Method(i)
		own, ok := auto.MethodByName(m.Name)
		if assert.True(t, ok, m.Name) {
			for i := range m.Type.NumIn() - 1 {
				assert.Equal(t, m.Type.In(i+1), own.Type.In(i+1), m.Name)
			}
			for i := range m.Type.NumOut() {
				assert.Equal(t, m.Type.Out(i), own.Type.Out(i), m.Name)
			}
		}
	}
}

// Programs look into an address for the IP, by a type assertion; whom they cannot tell they
// let in. So addresses of auto, and of what is dialed in place of "tcp", have the type that they
// want, whatever network carries the connection.
func TestAddressesInPlaceOfTCPAreThoseOfPackageNet(t *testing.T) {
	t.Run("one family", func(t *testing.T) {
		overEachCarrier(t, func(_ string, connect func() (client, server net.Conn)) {
			c, s := connect()
			require.IsType(t, &net.TCPAddr{}, s.LocalAddr())
			requireTCPAddresses(t, c, s, s.LocalAddr())
			for _, a := range []net.Addr{c.LocalAddr(), c.RemoteAddr()} {
				require.Equal(t, a.String(), a.(interface{ AddrPort() netip.AddrPort }).AddrPort().String())
			}
		})
	})
	t.Run("both families", func(t *testing.T) {
		var clients []netip.Addr
		accept := func(l net.Listener, c net.Conn) {
			s := accept(t, l)
			defer c.Close()
			require.Equal(t, c.RemoteAddr().String(), s.LocalAddr().String())
			clients = append(clients, s.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), s.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
		}
		plain, err := net.Listen("tcp", ":0")
		require.NoError(t, err)
		defer plain.Close()
		at := func(l net.Listener) string { return fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port) }
		c, err := net.Dial("tcp", at(plain))
		require.NoError(t, err)
		accept(plain, c)
		better(t, sim.New(sim.Link{}), nil)
		l := listenAuto(t, ":0")
		c = dialAuto(t, Dialer{}, at(l))
		require.Equal(t, "shm", carrierOf(c))
		accept(l, c)
		c, err = net.Dial("tcp", at(l))
		require.NoError(t, err)
		accept(l, c)
		for _, client := range clients {
			require.Equal(t, clients[0], client, "whatever carries the connection")
		}
	})
}

// requireTCPAddresses requires that c, which has connected to a listener's address, has addresses
// of package net, which are those that its other end has.
func requireTCPAddresses(t *testing.T, c, s net.Conn, at net.Addr) {
	t.Helper()
	require.IsType(t, &net.TCPAddr{}, c.LocalAddr())
	require.IsType(t, &net.TCPAddr{}, c.RemoteAddr())
	require.Equal(t, at.String(), c.RemoteAddr().String())
	require.Equal(t, s.RemoteAddr().String(), c.LocalAddr().String())
	require.Equal(t, "127.0.0.1", c.LocalAddr().(*net.TCPAddr).IP.String())
}

func TestAutoHasTheDescriptorOfTheTCPConnectionThatCarriesIt(t *testing.T) {
	better(t, nil, nil)
	c := dialAuto(t, Dialer{}, listenTCP(t, "127.0.0.1:0").Addr().String())
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	called := false
	require.NoError(t, raw.Control(func(uintptr) { called = true }))
	require.True(t, called)
	f, err := c.File()
	require.NoError(t, err)
	defer f.Close()
	same, err := net.FileConn(f)
	require.NoError(t, err)
	defer same.Close()
	require.Equal(t, c.LocalAddr(), same.LocalAddr())

	better(t, sim.New(sim.Link{}), nil)
	c = dialAuto(t, Dialer{}, listenAuto(t, "127.0.0.1:0").Addr().String())
	require.Equal(t, "shm", c.Carrier())
	_, err = c.File()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.IsType(t, &net.OpError{}, err)
	multipath, err := c.MultipathTCP()
	require.NoError(t, err)
	require.False(t, multipath)
}

func TestAwaitReadOverEachCarrier(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not tell")
	}
	overEachCarrier(t, func(_ string, connect func() (client, server net.Conn)) {
		client, server := connect()
		awaited := make(chan error, 1)
		await := func() { awaited <- client.(interface{ AwaitRead() error }).AwaitRead() }
		go await()
		time.Sleep(10 * time.Millisecond)
		require.Empty(t, awaited)
		write(t, server, "x")
		require.NoError(t, <-awaited)
		n, err := client.Read(make([]byte, 2))
		require.NoError(t, err)
		require.Equal(t, 1, n, "it has taken nothing")

		require.NoError(t, client.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		go await()
		err = <-awaited
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var op *net.OpError
		require.True(t, errors.As(err, &op))
		require.Equal(t, "read", op.Op)

		require.NoError(t, client.SetReadDeadline(time.Time{}))
		go await()
		require.NoError(t, server.(interface{ SetLinger(int) error }).SetLinger(0))
		require.NoError(t, server.Close())
		require.NoError(t, <-awaited)
		_, err = client.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "the error is Read's")

		require.NoError(t, client.Close())
		go await()
		require.NoError(t, <-awaited)
	})
}

func TestPeerUserIsThatOfThePeersProcess(t *testing.T) {
	overEachCarrier(t, func(carrier string, connect func() (client, server net.Conn)) {
		for _, c := range bothOf(connect()) {
			uid, known := c.(interface{ PeerUser() (uint32, bool) }).PeerUser()
			require.Equal(t, carrier == "shm", known)
			if known {
				require.EqualValues(t, os.Geteuid(), uid)
			}
			require.NoError(t, c.Close())
			_, _ = c.(interface{ PeerUser() (uint32, bool) }).PeerUser()
		}
	})
}

func bothOf(client, server net.Conn) []net.Conn { return []net.Conn{client, server} }
