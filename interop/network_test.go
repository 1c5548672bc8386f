package interop

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// network is where a test listens and dials: the name of a network, and a host.
type network struct{ name, host string }

// overEachNetwork runs a test over shm, over auto, and over rdma where there is a device.
func overEachNetwork(t *testing.T, test func(t *testing.T, n network)) {
	t.Run("shm", func(t *testing.T) {
		if err := noShm(t); err != nil {
			t.Skip(err)
		}
		test(t, network{"shm", "127.0.0.1"})
	})
	t.Run("auto", func(t *testing.T) { test(t, network{"auto", "127.0.0.1"}) })
	t.Run("rdma", func(t *testing.T) {
		addr := os.Getenv("SOFTROCE_ADDR")
		if addr == "" && os.Getenv("RINGNET_REQUIRE_RDMA") != "" {
			t.Fatal("RINGNET_REQUIRE_RDMA is set, but not SOFTROCE_ADDR")
		}
		if addr == "" {
			t.Skip("no RDMA device: SOFTROCE_ADDR is not set; bin/softroce runs this where there is one")
		}
		test(t, network{"rdma", addr})
	})
}

// listen listens until the end of the test.
func (n network) listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := ringnet.Listen(n.name, net.JoinHostPort(n.host, "0"))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// dialer returns what http.Transport and go-redis need, which ask for "tcp"; it dials on n.
func (n network) dialer() *ringnet.Dialer { return &ringnet.Dialer{ForTCP: n.name} }

// carrier returns the network that carries connections of n.
func (n network) carrier(t *testing.T) string {
	t.Helper()
	switch {
	case n.name != "auto":
		return n.name
	case noShm(t) == nil:
		return "shm"
	}
	return "tcp"
}

// noShm returns why this system has no shm, or nil.
func noShm(t *testing.T) error {
	t.Helper()
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	if errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return nil
}

// dial dials a listener of n, and closes the connection at the end of the test.
func (n network) dial(t *testing.T, l net.Listener) conn {
	t.Helper()
	c, err := n.dialer().DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(conn)
}

// conn has the methods of a *net.TCPConn that every connection of ringnet has, too.
type conn interface {
	halfCloser
	SetLinger(sec int) error
}

// halfCloser has those that a *net.UnixConn has, too.
type halfCloser interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// carrierOf returns the network that carries a connection.
func carrierOf(c net.Conn) string {
	if ours, ok := c.(interface{ Carrier() string }); ok {
		return ours.Carrier()
	}
	return c.LocalAddr().Network()
}

// serveOn serves each connection of a listener, until the end of the test.
func serveOn(t *testing.T, l net.Listener, serve func(c net.Conn)) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

// forward accepts connections, and forwards each to an address of package net,
// until the end of the test.
func forward(t *testing.T, l net.Listener, network, address string) {
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() { splice(c.(conn), network, address) })
		}
	})
	t.Cleanup(forwarding.Wait)
	t.Cleanup(func() { l.Close() })
}

// splice copies in both directions until both have ended.
func splice(c conn, network, address string) {
	defer c.Close()
	up, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer up.Close()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(c, up)
		_ = c.CloseWrite()
	})
	_, _ = io.Copy(up, c)
	_ = up.(halfCloser).CloseWrite()
	back.Wait()
}

// receive takes a value from a channel, and fails the test if none comes in time.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(hang.After):
		require.FailNow(t, "nothing has come")
		panic("unreachable")
	}
}

// randomBytes makes random bytes, which are like no others.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// requireSame requires equal bytes, and does not print megabytes.
func requireSame(t *testing.T, want, got []byte) {
	t.Helper()
	require.Equal(t, len(want), len(got), "length")
	require.True(t, bytes.Equal(want, got), "contents")
}

// certificate returns configurations of a server and of a client that trust each other, by
// a self-signed certificate for both.
func certificate(t *testing.T, n network) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.ParseIP(n.host)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	own := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	server = &tls.Config{Certificates: own, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven}
	client = &tls.Config{Certificates: own, RootCAs: pool, ServerName: n.host}
	return server, client
}
