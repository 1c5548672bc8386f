package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

func init() {
	grpclog.SetLoggerV2(fatalPanics{grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)})
}

// fatalPanics makes a case of gRPC's that fails panic, which names the test, and not call
// os.Exit, which does not.
type fatalPanics struct{ grpclog.LoggerV2 }

func (fatalPanics) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (fatalPanics) Fatalln(args ...any)               { panic(fmt.Sprintln(args...)) }
func (fatalPanics) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// grpcCases are the cases of
// https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md that gRPC-Go
// has at both ends, without those that need a Google account, and without orca_oob and
// pick_first_unary, which gRPC-Go's test server does not answer.
var grpcCases = []struct {
	name string
	do   func(ctx context.Context, cc *grpc.ClientConn, tc testgrpc.TestServiceClient)
}{
	{"empty_unary", call(interop.DoEmptyUnaryCall)},
	{"large_unary", call(interop.DoLargeUnaryCall)},
	{"large_unary_compressed", call(interop.DoLargeUnaryCall, grpc.UseCompressor(gzip.Name))},
	{"client_streaming", call(interop.DoClientStreaming)},
	{"server_streaming", call(interop.DoServerStreaming)},
	{"ping_pong", call(interop.DoPingPong)},
	{"empty_stream", call(interop.DoEmptyStream)},
	{"timeout_on_sleeping_server", call(interop.DoTimeoutOnSleepingServer)},
	{"cancel_after_begin", call(interop.DoCancelAfterBegin)},
	{"cancel_after_first_response", call(interop.DoCancelAfterFirstResponse)},
	{"status_code_and_message", call(interop.DoStatusCodeAndMessage)},
	{"special_status_message", call(interop.DoSpecialStatusMessage)},
	{"custom_metadata", call(interop.DoCustomMetadata)},
	{"unimplemented_method", func(ctx context.Context, cc *grpc.ClientConn, _ testgrpc.TestServiceClient) {
		interop.DoUnimplementedMethod(ctx, cc)
	}},
	{"unimplemented_service", func(ctx context.Context, cc *grpc.ClientConn, _ testgrpc.TestServiceClient) {
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(cc))
	}},
	{"orca_per_rpc", func(ctx context.Context, _ *grpc.ClientConn, tc testgrpc.TestServiceClient) {
		interop.DoORCAPerRPCTest(ctx, tc)
	}},
	{"rpc_soak", func(ctx context.Context, cc *grpc.ClientConn, _ testgrpc.TestServiceClient) {
		interop.DoSoakTest(ctx, soak(func() (*grpc.ClientConn, func()) { return cc, func() {} }))
	}},
}

func call(do func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption), options ...grpc.CallOption) func(
	context.Context, *grpc.ClientConn, testgrpc.TestServiceClient) {
	return func(ctx context.Context, _ *grpc.ClientConn, tc testgrpc.TestServiceClient) { do(ctx, tc, options...) }
}

// soak is many large calls, several at once, all of which must succeed.
func soak(channel func() (*grpc.ClientConn, func())) interop.SoakTestConfig {
	return interop.SoakTestConfig{
		RequestSize:                      271828,
		ResponseSize:                     314159,
		PerIterationMaxAcceptableLatency: hang.After,
		OverallTimeout:                   hang.After,
		NumWorkers:                       4,
		Iterations:                       20,
		ChannelForTest:                   channel,
	}
}

func TestGRPC(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		plain := insecure.NewCredentials()
		t.Run("plain", func(t *testing.T) { testGRPC(t, n, plain, plain) })
		t.Run("tls", func(t *testing.T) {
			server, client := certificate(t, n)
			testGRPC(t, n, credentials.NewTLS(server), credentials.NewTLS(client))
		})
	})
}

// testGRPC runs all cases one after the other over one connection, and then one case over
// many connections.
func testGRPC(t *testing.T, n network, server, client credentials.TransportCredentials) {
	l := n.listen(t)
	s := grpc.NewServer(grpc.Creds(server), orca.CallMetricsServerOption(nil))
	testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()

	newClient := func() *grpc.ClientConn {
		cc, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
			grpc.WithTransportCredentials(client),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return n.dialer().DialContext(ctx, "tcp", addr)
			}),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}`))
		require.NoError(t, err)
		return cc
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cc := newClient()
	for _, c := range grpcCases {
		t.Run(c.name, func(*testing.T) { c.do(ctx, cc, testgrpc.NewTestServiceClient(cc)) })
	}
	t.Run("channel_soak", func(*testing.T) {
		interop.DoSoakTest(ctx, soak(func() (*grpc.ClientConn, func()) {
			cc := newClient()
			return cc, func() { cc.Close() }
		}))
	})
	require.NoError(t, cc.Close())
	s.GracefulStop()
	require.NoError(t, receive(t, served))
}
