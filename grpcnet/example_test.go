package grpcnet_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringnet/ringnet/grpcnet"
)

// A server and a client, over the best network that both have.
func Example() {
	l, err := grpcnet.Listen("auto", "127.0.0.1:0") // ":50051"
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(grpcnet.NewCredentials(nil))) // credentials.NewTLS(…) in place of nil
	healthpb.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	defer s.Stop()

	cc, err := grpc.NewClient(l.Addr().String(), // "server.example:50051"
		grpcnet.WithDialer(nil), grpc.WithTransportCredentials(grpcnet.NewCredentials(nil)))
	if err != nil {
		log.Fatal(err)
	}
	defer cc.Close()
	answer, err := healthpb.NewHealthClient(cc).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.GetStatus())
	// Output: SERVING
}
