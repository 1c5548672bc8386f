package grpcnet

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/ringnet/ringnet"
)

// overEachCarrier runs a test over shm, over TCP, and over rdma where there is a device.
func overEachCarrier(t *testing.T, test func(t *testing.T, carrier, host string)) {
	for carrier, host := range map[string]string{"shm": "127.0.0.1", "tcp": "127.0.0.1", "rdma": os.Getenv("SOFTROCE_ADDR")} {
		t.Run(carrier, func(t *testing.T) {
			if host == "" {
				require.Empty(t, os.Getenv("RINGNET_REQUIRE_RDMA"))
				t.Skip("no RDMA device: SOFTROCE_ADDR is not set")
			}
			if carrier == "shm" {
				needsShm(t)
			}
			networks := carrier + ",tcp"
			if carrier == "tcp" {
				networks = carrier
			}
			t.Setenv("RINGNET_NETWORKS", networks)
			test(t, carrier, host)
		})
	}
}

func needsShm(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("shm is Linux's")
	}
}

// server is gRPC's test server, which notes who called it last.
type server struct {
	testgrpc.TestServiceServer
	addr string

	mu   sync.Mutex
	from *peer.Peer
}

func (s *server) caller() *peer.Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from
}

func serve(t *testing.T, l net.Listener, options ...grpc.ServerOption) (*server, *grpc.Server) {
	t.Helper()
	own := &server{TestServiceServer: interop.NewTestServer(), addr: l.Addr().String()}
	options = append([]grpc.ServerOption{grpc.Creds(NewCredentials(nil))}, options...)
	g := grpc.NewServer(append(options, grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		own.mu.Lock()
		own.from, _ = peer.FromContext(ctx)
		own.mu.Unlock()
		return h(ctx, r)
	}))...)
	testgrpc.RegisterTestServiceServer(g, own)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, <-served)
	})
	return own, g
}

func listen(t *testing.T, host string) net.Listener {
	t.Helper()
	l, err := Listen("auto", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	return l
}

func client(t *testing.T, target string, options ...grpc.DialOption) testgrpc.TestServiceClient {
	t.Helper()
	cc, err := grpc.NewClient(target, append([]grpc.DialOption{WithDialer(nil), grpc.WithTransportCredentials(NewCredentials(nil))}, options...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	return testgrpc.NewTestServiceClient(cc)
}

// dialer dials this network for tcp.
func dialer(network string) *ringnet.Dialer { return &ringnet.Dialer{ForTCP: network} }

func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestCallsAndStreams(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, carrier, host string) {
		s, g := serve(t, listen(t, host))
		c := client(t, s.addr)
		ctx := timeout(t)
		interop.DoEmptyUnaryCall(ctx, c)
		interop.DoLargeUnaryCall(ctx, c)
		interop.DoClientStreaming(ctx, c)
		interop.DoServerStreaming(ctx, c)
		interop.DoPingPong(ctx, c)
		interop.DoTimeoutOnSleepingServer(ctx, c)
		interop.DoCancelAfterFirstResponse(ctx, c)
		info := s.caller().AuthInfo.(AuthInfo)
		require.Equal(t, carrier, info.Carrier)
		require.Equal(t, carrier == "shm", info.KnowsUID)
		require.Equal(t, "insecure", info.AuthType())
		require.Equal(t, credentials.NoSecurity, info.SecurityLevel)
		var to peer.Peer
		_, err := c.EmptyCall(ctx, &testgrpc.Empty{}, grpc.Peer(&to))
		require.NoError(t, err)
		require.Equal(t, carrier != "shm", len(to.AuthInfo.(AuthInfo).PassedOver) > 0)

		stream, err := c.FullDuplexCall(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{ResponseParameters: []*testgrpc.ResponseParameters{{Size: 1}}}))
		_, err = stream.Recv()
		require.NoError(t, err)
		g.Stop()
		_, err = stream.Recv()
		require.Equal(t, codes.Unavailable, status.Code(err), err)
		_, err = c.EmptyCall(ctx, &testgrpc.Empty{})
		require.Equal(t, codes.Unavailable, status.Code(err), err)
	})
}

// gRPC resolves names as over TCP: by DNS, or by what a program has registered.
func TestNamesAreResolvedByGRPC(t *testing.T) {
	s, _ := serve(t, listen(t, "127.0.0.1"))
	_, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	_, err = client(t, "localhost:"+port).EmptyCall(timeout(t), &testgrpc.Empty{})
	require.NoError(t, err)

	other, _ := serve(t, listen(t, "127.0.0.1"))
	r := manual.NewBuilderWithScheme("list")
	r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: s.addr}, {Addr: other.addr}}})
	c := client(t, "list:///both", grpc.WithResolvers(r), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
	for other.caller() == nil {
		_, err = c.EmptyCall(timeout(t), &testgrpc.Empty{}, grpc.WaitForReady(true))
		require.NoError(t, err)
	}
}

// countedPool counts the buffers that are taken.
type countedPool struct {
	mem.BufferPool
	taken, given int
}

func (p *countedPool) Get(n int) *[]byte {
	p.taken++
	return p.BufferPool.Get(n)
}

func (p *countedPool) Put(b *[]byte) {
	p.given++
	p.BufferPool.Put(b)
}

func TestAConnectionThatWaitsHasNoBuffer(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, _, host string) {
		l := listen(t, host)
		defer l.Close()
		dialed, err := (&ringnet.Dialer{}).Dial("auto", l.Addr().String())
		require.NoError(t, err)
		defer dialed.Close()
		c, err := l.Accept()
		require.NoError(t, err)
		defer c.Close()

		pool := &countedPool{BufferPool: mem.DefaultBufferPool()}
		reader := c.(interface {
			ReadOnReady(int, mem.BufferPool) (*[]byte, int, error)
		})
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		_, _, err = reader.ReadOnReady(100, pool)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Zero(t, pool.taken)

		require.NoError(t, c.SetReadDeadline(time.Time{}))
		_, err = dialed.Write([]byte("hello"))
		require.NoError(t, err)
		b, n, err := reader.ReadOnReady(100, pool)
		require.NoError(t, err)
		require.Equal(t, "hello", string((*b)[:n]))
		pool.Put(b)

		require.NoError(t, dialed.Close())
		_, _, err = reader.ReadOnReady(100, pool)
		require.Equal(t, io.EOF, err)
		require.Equal(t, pool.taken, pool.given)
	})
}

// Sockets of another kind, and connections of other libraries, pass the credentials, the listener and
// the dialer as they are.
func TestConnectionsOfOthersAreLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	here, err := os.Getwd()
	require.NoError(t, err)
	relative, err := filepath.Rel(here, path)
	require.NoError(t, err)
	abstract := "ringnet-" + filepath.Base(t.TempDir()) + strconv.Itoa(os.Getpid())
	for address, targets := range map[string][]string{
		path:           {"unix:" + path, "unix://" + path, "unix:" + relative},
		"@" + abstract: {"unix-abstract:" + abstract},
	} {
		l, err := net.Listen("unix", address)
		require.NoError(t, err)
		s, _ := serve(t, NewListener(l), grpc.Creds(NewCredentials(nil)))
		for _, target := range targets {
			for name, options := range map[string][]grpc.DialOption{"gRPC's": nil, "ringnet's": {WithDialer(nil)}} {
				cc, err := grpc.NewClient(target, append(options, grpc.WithTransportCredentials(NewCredentials(nil)))...)
				require.NoError(t, err)
				_, err = testgrpc.NewTestServiceClient(cc).EmptyCall(timeout(t), &testgrpc.Empty{})
				require.NoError(t, err, "%s over %s dialer", target, name)
				require.Equal(t, "insecure", s.caller().AuthInfo.AuthType())
				require.NoError(t, cc.Close())
			}
		}
	}
}
