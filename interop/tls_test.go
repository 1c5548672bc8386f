package interop

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// tlsPair returns both ends of a TLS connection before the handshake.
func tlsPair(t *testing.T, n network) (client, server *tls.Conn) {
	serverConfig, clientConfig := certificate(t, n)
	c, s := pair(t, n)
	return tls.Client(c, clientConfig), tls.Server(s, serverConfig)
}

// pair returns both ends of a connection.
func pair(t *testing.T, n network) (client, server conn) {
	t.Helper()
	l := n.listen(t)
	client = n.dial(t, l)
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return client, c.(conn)
}

// handshake runs the handshake at both ends.
func handshake(t *testing.T, client, server *tls.Conn) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- server.HandshakeContext(t.Context()) }()
	require.NoError(t, client.HandshakeContext(t.Context()))
	require.NoError(t, receive(t, served))
}

// Another process that listens at an address or dials it, on whatever network, does not
// have the key.
func TestTLSRefusesStrangers(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		serverConfig, clientConfig := certificate(t, n)
		strangeServer, strangeClient := certificate(t, n)
		shake := func(client, server *tls.Config) (atClient, atServer error) {
			c, s := pair(t, n)
			served := make(chan error, 1)
			go func() {
				err := tls.Server(s, server).HandshakeContext(t.Context())
				_ = s.Close()
				served <- err
			}()
			atClient = tls.Client(c, client).HandshakeContext(t.Context())
			_ = c.Close()
			return atClient, receive(t, served)
		}
		var unknown x509.UnknownAuthorityError
		err, _ := shake(clientConfig, strangeServer)
		require.ErrorAs(t, err, &unknown)

		serverConfig.ClientAuth = tls.RequireAndVerifyClientCert
		strangeClient.RootCAs = clientConfig.RootCAs
		_, err = shake(strangeClient, serverConfig)
		require.ErrorAs(t, err, &unknown)
		_, err = shake(clientConfig, serverConfig)
		require.NoError(t, err)
	})
}

func TestTLSHandshakeWithASilentPeerEndsWithItsContext(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		client, silent := tlsPair(t, n)
		ctx, cancel := context.WithCancel(t.Context())
		shaken := make(chan error, 1)
		go func() { shaken <- client.HandshakeContext(ctx) }()
		_, err := silent.NetConn().Read(make([]byte, 1))
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, receive(t, shaken), context.Canceled)
	})
}

// crypto/tls takes an end between two records for EOF, as it does over TCP. An end within a
// record is no EOF, and neither is the loss of the connection.
func TestTLSTruncationIsNotEOF(t *testing.T) {
	const recordHeader = "\x17\x03\x03\x00\x64" // and no record after it
	ends := map[string]struct {
		do   func(conn) error
		want error
	}{
		"closed within a record": {func(c conn) error {
			if _, err := io.WriteString(c, recordHeader); err != nil {
				return err
			}
			return c.Close()
		}, io.ErrUnexpectedEOF},
		"cut": {func(c conn) error {
			if err := c.SetLinger(0); err != nil {
				return err
			}
			return c.Close()
		}, syscall.ECONNRESET},
	}
	overEachNetwork(t, func(t *testing.T, n network) {
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				client, server := tlsPair(t, n)
				handshake(t, client, server)
				_, err := client.Write([]byte("a part"))
				require.NoError(t, err)
				got := make([]byte, len("a part"))
				_, err = io.ReadFull(server, got)
				require.NoError(t, err)
				require.Equal(t, "a part", string(got))
				require.NoError(t, end.do(client.NetConn().(conn)))
				_, err = server.Read(got)
				require.ErrorIs(t, err, end.want)
			})
		}
	})
}
