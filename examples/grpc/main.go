// GRPC asks a gRPC server for its health, by the health service that comes with gRPC.
// Server and client are in this process. One line of each differs from what it would be
// over TCP:
//
//	go run ./grpc
//	go run ./grpc -network rdma -addr 10.0.0.1:0
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringnet/ringnet"
)

func main() {
	network := flag.String("network", "auto", "auto, shm or rdma")
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on; of an RDMA device, for rdma")
	flag.Parse()

	l, err := ringnet.Listen(*network, *addr) // was net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() {
		if err := server.Serve(l); err != nil {
			log.Fatal(err)
		}
	}()
	defer server.GracefulStop()

	// passthrough gives the address to the dialer as it is.
	var carrier atomic.Value
	client, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(ringnet.Dialer).DialContext(ctx, *network, addr)
			if err == nil {
				carrier.Store(c.(interface{ Carrier() string }).Carrier())
			}
			return c, err
		}))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reply, err := grpc_health_v1.NewHealthClient(client).Check(ctx, new(grpc_health_v1.HealthCheckRequest))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v, over %s\n", reply.GetStatus(), carrier.Load())
}
