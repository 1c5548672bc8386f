package examples_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringnet/ringnet"
)

// gRPC serves on any net.Listener, and dials by any function that returns a
// net.Conn.
func Example_grpc() {
	l, err := ringnet.Listen("auto", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	defer server.Stop()

	client, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return new(ringnet.Dialer).DialContext(ctx, "auto", addr)
		}))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	reply, err := grpc_health_v1.NewHealthClient(client).
		Check(context.Background(), new(grpc_health_v1.HealthCheckRequest))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.GetStatus())
	// Output: SERVING
}
