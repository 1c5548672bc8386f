package grpcnet

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/ringnet/ringnet"
)

// BenchmarkIdleConnections says how many bytes a connection takes that has made a call and waits,
// both ends together: of the heap and stacks, and of the memory of links.
func BenchmarkIdleConnections(b *testing.B) {
	const connections = 1000
	for _, networks := range []string{"shm", "tcp"} {
		b.Run(networks, func(b *testing.B) {
			b.Setenv("RINGNET_NETWORKS", networks)
			l, err := Listen("auto", "127.0.0.1:0")
			require.NoError(b, err)
			g := grpc.NewServer(grpc.Creds(NewCredentials(nil)))
			testgrpc.RegisterTestServiceServer(g, testgrpc.UnimplementedTestServiceServer{})
			go g.Serve(l)
			defer g.Stop()
			inUse := func() (heap uint64) {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m.HeapAlloc + m.StackInuse
			}
			for b.Loop() {
				before, links := inUse(), ringnet.Memory().Used
				clients := make([]*grpc.ClientConn, connections)
				for i := range clients {
					clients[i], err = grpc.NewClient(l.Addr().String(), WithDialer(nil), grpc.WithTransportCredentials(NewCredentials(nil)))
					require.NoError(b, err)
					_, _ = testgrpc.NewTestServiceClient(clients[i]).EmptyCall(b.Context(), &testgrpc.Empty{})
				}
				b.ReportMetric(float64(inUse()-before)/connections, "heap-B/conn")
				b.ReportMetric(float64(ringnet.Memory().Used-links)/connections, "links-B/conn")
				for _, c := range clients {
					require.NoError(b, c.Close())
				}
			}
		})
	}
}
