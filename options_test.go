package ringnet

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
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
	simulate(t, sim.New(sim.Link{}))
	l, err := Listen("sim", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := Dial("sim", l.Addr().String())
	require.NoError(t, err)
	requireOptions(t, c)
}

func TestOptionsOfTCPAreThoseOfTheConnectionThatCarriesAuto(t *testing.T) {
	t.Run("shm", func(t *testing.T) {
		better(t, sim.New(sim.Link{}), nil)
		delayTCP(t, time.Hour)
		c := dialAuto(t, Dialer{}, listenAuto(t, "127.0.0.1:0").Addr().String())
		require.IsType(t, &Conn{}, c.NetConn())
		requireOptions(t, c)
	})
	t.Run("tcp", func(t *testing.T) {
		better(t, nil, nil)
		c := dialAuto(t, Dialer{}, listenTCP(t, "127.0.0.1:0").Addr().String())
		require.IsType(t, &net.TCPConn{}, c.NetConn())
		requireOptions(t, c)
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
	for _, carrier := range []string{"shm", "tcp"} {
		t.Run(carrier, func(t *testing.T) {
			if carrier == "tcp" {
				better(t, nil, nil)
			} else {
				better(t, sim.New(sim.Link{}), nil)
				delayTCP(t, time.Hour)
			}
			l := listenAuto(t, "127.0.0.1:0")
			c := dialAuto(t, Dialer{}, l.Addr().String())
			require.Equal(t, carrier, c.LocalAddr().Network())
			server, err := l.Accept()
			require.NoError(t, err)
			defer server.Close()
			bufs := net.Buffers{[]byte("head"), nil, []byte("er and body")}
			n, err := c.WriteBuffers(&bufs)
			require.NoError(t, err)
			require.EqualValues(t, 15, n)
			require.EqualValues(t, n, c.Stats().BytesWritten)
			require.Empty(t, bufs)
			got := make([]byte, n)
			_, err = io.ReadFull(server, got)
			require.NoError(t, err)
			require.Equal(t, "header and body", string(got))
		})
	}
}
