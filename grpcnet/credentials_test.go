package grpcnet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/testdata"
)

const serverName = "x.test.example.com" // of the certificate in testdata

func pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(testdata.Path(file))
	require.NoError(t, err)
	p := x509.NewCertPool()
	require.True(t, p.AppendCertsFromPEM(pem))
	return p
}

func certificates(t *testing.T, name string) []tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(testdata.Path("x509/"+name+"_cert.pem"), testdata.Path("x509/"+name+"_key.pem"))
	require.NoError(t, err)
	return []tls.Certificate{c}
}

// mutual is TLS of a server that requires its clients' certificates.
func mutual(t *testing.T) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		Certificates: certificates(t, "server1"), ClientCAs: pool(t, "x509/client_ca_cert.pem"), ClientAuth: tls.RequireAndVerifyClientCert,
	})
}

// secure is TLS of a client that has a certificate and expects a server of this name.
func secure(t *testing.T, name string) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{Certificates: certificates(t, "client1"), RootCAs: pool(t, "x509/server_ca_cert.pem"), ServerName: name})
}

// anonymous is TLS of a client without a certificate.
func anonymous(t *testing.T) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{RootCAs: pool(t, "x509/server_ca_cert.pem"), ServerName: serverName})
}

// call makes one call, and returns whom it has reached.
func call(t *testing.T, addr string, c credentials.TransportCredentials, options ...grpc.CallOption) (to peer.Peer, err error) {
	t.Helper()
	_, err = client(t, addr, grpc.WithTransportCredentials(c)).EmptyCall(timeout(t), &testgrpc.Empty{}, append(options, grpc.Peer(&to))...)
	return to, err
}

func requireRefused(t *testing.T, err error) {
	t.Helper()
	require.Equal(t, codes.Unavailable, status.Code(err), err)
}

func TestCredentialsHoldOnEveryNetwork(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, carrier, host string) {
		s, _ := serve(t, listen(t, host), grpc.Creds(NewCredentials(mutual(t))))
		to, err := call(t, s.addr, NewCredentials(secure(t, serverName)), grpc.CallAuthority("y.test.example.com"))
		require.NoError(t, err)
		for _, p := range []*peer.Peer{&to, s.caller()} {
			info, isTLS := p.AuthInfo.(credentials.TLSInfo)
			require.True(t, isTLS, "%T", p.AuthInfo)
			require.Equal(t, credentials.PrivacyAndIntegrity, info.SecurityLevel)
			require.NotEmpty(t, info.State.PeerCertificates)
		}
		_, err = call(t, s.addr, NewCredentials(secure(t, serverName)), grpc.CallAuthority("evil.example"))
		requireRefused(t, err)

		for name, c := range map[string]credentials.TransportCredentials{
			"another server": secure(t, "elsewhere.example.org"), "no certificate": anonymous(t), "no TLS": nil,
		} {
			_, err = call(t, s.addr, NewCredentials(c))
			requireRefused(t, err)
			require.NotContains(t, err.Error(), "deadline", name)
		}
	})
}

// What is lost, and where: see NewLocalCredentials.
func TestLocalCredentialsAreLeftOutOverShmAlone(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, carrier, host string) {
		isShm := carrier == "shm"
		s, _ := serve(t, listen(t, host), grpc.Creds(NewLocalCredentials(mutual(t))))
		for _, c := range []credentials.TransportCredentials{secure(t, serverName), secure(t, "elsewhere.example.org"), anonymous(t), insecure.NewCredentials()} {
			to, err := call(t, s.addr, NewLocalCredentials(c), grpc.CallAuthority("evil.example"))
			if !isShm {
				requireRefused(t, err)
				continue
			}
			require.NoError(t, err)
			for _, p := range []*peer.Peer{&to, s.caller()} {
				info := p.AuthInfo.(AuthInfo)
				require.Equal(t, AuthInfo{
					CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
					Carrier:        "shm", UID: uint32(os.Geteuid()), KnowsUID: true,
				}, info)
				require.Equal(t, "shm", info.AuthType())
			}
		}
		to, err := call(t, s.addr, NewLocalCredentials(secure(t, serverName)))
		require.NoError(t, err)
		require.Equal(t, !isShm, to.AuthInfo.AuthType() == "tls")

		nothing, _ := serve(t, listen(t, host), grpc.Creds(NewLocalCredentials(nil)))
		_, err = call(t, nothing.addr, NewLocalCredentials(nil))
		if isShm {
			require.NoError(t, err)
			return
		}
		requireRefused(t, err)
		require.ErrorContains(t, err, "grpcnet: no credentials for a connection over "+carrier)
	})
}

// What one end leaves out and the other does not fails at once over shm, and both hold over others.
func TestLocalCredentialsAtOneEndAlone(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, carrier, host string) {
		for _, ends := range []struct {
			server, client credentials.TransportCredentials
		}{
			{mutual(t), secure(t, serverName)}, {insecure.NewCredentials(), insecure.NewCredentials()},
		} {
			byDefault, _ := serve(t, listen(t, host), grpc.Creds(NewCredentials(ends.server)))
			local, _ := serve(t, listen(t, host), grpc.Creds(NewLocalCredentials(ends.server)))
			_, toDefault := call(t, byDefault.addr, NewLocalCredentials(ends.client))
			_, toLocal := call(t, local.addr, NewCredentials(ends.client))
			if carrier != "shm" {
				require.NoError(t, toDefault)
				require.NoError(t, toLocal)
				continue
			}
			requireRefused(t, toDefault)
			require.ErrorContains(t, toDefault, "NewLocalCredentials")
			requireRefused(t, toLocal)
			require.Nil(t, local.caller())
			for _, err := range []error{toDefault, toLocal} {
				require.NotContains(t, err.Error(), "deadline")
			}
		}
	})
}

// ofAnotherUser is a connection over shm whose peer another user runs: root, or one whom TrustUser has
// admitted.
type ofAnotherUser struct{ stream }

func (c ofAnotherUser) PeerUser() (uid uint32, known bool) {
	uid, known = c.stream.PeerUser()
	return uid + 1, known
}

type listenerOfAnotherUser struct{ net.Listener }

func (l listenerOfAnotherUser) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return ofAnotherUser{c.(stream)}, nil
}

func TestLocalCredentialsHoldBetweenTwoUsers(t *testing.T) {
	needsShm(t)
	l, err := Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	s, _ := serve(t, listenerOfAnotherUser{l}, grpc.Creds(NewLocalCredentials(mutual(t))))
	calls := func(c credentials.TransportCredentials) error {
		// The dialed connection is another user's, too.
		between := grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := dialer("shm").DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			return ofAnotherUser{c.(stream)}, nil
		})
		_, err := client(t, s.addr, grpc.WithTransportCredentials(NewLocalCredentials(c)), between).EmptyCall(timeout(t), &testgrpc.Empty{})
		return err
	}
	require.NoError(t, calls(secure(t, serverName)))
	require.IsType(t, credentials.TLSInfo{}, s.caller().AuthInfo)
	for _, c := range []credentials.TransportCredentials{secure(t, "elsewhere.example.org"), anonymous(t), insecure.NewCredentials()} {
		requireRefused(t, calls(c))
	}
	err = calls(nil)
	requireRefused(t, err)
	require.ErrorContains(t, err, "over shm with user")
}

// A client that is told to stop does not wait for a peer that sends nothing.
func TestLocalCredentialsEndWithTheContext(t *testing.T) {
	needsShm(t)
	l, err := Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := dialer("shm").Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = NewLocalCredentials(nil).ClientHandshake(ctx, "", c)
	require.ErrorIs(t, err, context.Canceled)
}

// bare are credentials whose AuthInfo has none of the interfaces that gRPC asks for.
type bare struct {
	credentials.TransportCredentials
	*asked
}

type asked struct {
	cloned int
	name   string
}

type bareInfo struct{}

func (bareInfo) AuthType() string { return "bare" }

func (bare) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, bareInfo{}, nil
}

func (bare) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, bareInfo{}, nil
}

func (b bare) Clone() credentials.TransportCredentials { b.cloned++; return b }
func (b bare) OverrideServerName(n string) error       { b.name = n; return nil }
func (bare) UsesXDS() bool                             { return true }

// gRPC asks an AuthInfo for interfaces that it need not have. What the credentials lack, grpcnet does
// not answer in their place.
func TestWhatCredentialsLackIsRefused(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, carrier, host string) {
		for name, with := range map[string]func(credentials.TransportCredentials) credentials.TransportCredentials{
			"default": NewCredentials, "local": NewLocalCredentials,
		} {
			if carrier == "shm" && name == "local" {
				continue // these are not asked there
			}
			c := with(bare{insecure.NewCredentials(), new(asked)})
			s, _ := serve(t, listen(t, host), grpc.Creds(c))
			to, err := call(t, s.addr, c)
			require.NoError(t, err)
			require.IsType(t, bareInfo{}, to.AuthInfo)
			require.IsType(t, bareInfo{}, s.caller().AuthInfo)
			_, err = call(t, s.addr, c, grpc.CallAuthority("evil.example"))
			requireRefused(t, err)
		}
	})
}

// What gRPC asks credentials themselves goes through.
func TestCredentialsPassOnWhatTheyAreAsked(t *testing.T) {
	for name, with := range map[string]func(credentials.TransportCredentials) credentials.TransportCredentials{
		"default": NewCredentials, "local": NewLocalCredentials,
	} {
		t.Run(name, func(t *testing.T) {
			b := bare{insecure.NewCredentials(), new(asked)}
			c := with(b).Clone()
			require.Equal(t, 1, b.cloned)
			require.NoError(t, c.OverrideServerName("other")) //nolint:staticcheck // it is passed on
			require.Equal(t, "other", b.name)
			require.Equal(t, b.Info(), c.Info())
			require.True(t, c.(interface{ UsesXDS() bool }).UsesXDS())
			x, ok := with(insecure.NewCredentials()).(interface{ UsesXDS() bool })
			require.False(t, ok && x.UsesXDS())
		})
	}
	none := NewLocalCredentials(nil)
	other := none.Clone()
	require.NoError(t, other.OverrideServerName("other")) //nolint:staticcheck // as above
	require.Equal(t, credentials.ProtocolInfo{SecurityProtocol: "local", ServerName: "other"}, other.Info())
	require.Equal(t, credentials.ProtocolInfo{SecurityProtocol: "local"}, none.Info())
	require.Equal(t, NewCredentials(nil), NewCredentials(nil).Clone())
}

// token is a secret for each call that only a secure connection may carry.
type token struct{}

func (token) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	return map[string]string{"token": "secret"}, credentials.CheckSecurityLevel(info.AuthInfo, credentials.PrivacyAndIntegrity)
}

func (token) RequireTransportSecurity() bool { return true }

func TestSecretsOfCallsTravelSecurely(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, carrier, host string) {
		for name, ends := range map[string]struct {
			server, client credentials.TransportCredentials
			travels        bool
		}{
			"TLS":                       {NewCredentials(mutual(t)), NewCredentials(secure(t, serverName)), true},
			"local, TLS":                {NewLocalCredentials(mutual(t)), NewLocalCredentials(secure(t, serverName)), true},
			"local":                     {NewLocalCredentials(nil), NewLocalCredentials(nil), carrier == "shm"},
			"nothing":                   {NewCredentials(nil), NewCredentials(nil), false},
			"insecure":                  {NewCredentials(insecure.NewCredentials()), NewCredentials(insecure.NewCredentials()), false},
			"local, otherwise insecure": {NewLocalCredentials(insecure.NewCredentials()), NewLocalCredentials(insecure.NewCredentials()), carrier == "shm"},
		} {
			s, _ := serve(t, listen(t, host), grpc.Creds(ends.server))
			_, err := call(t, s.addr, ends.client, grpc.PerRPCCredentials(token{}))
			require.Equal(t, ends.travels, err == nil, "%s: %v", name, err)
		}
	})
}
