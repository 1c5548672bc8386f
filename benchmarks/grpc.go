package main

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ringnet/ringnet/internal/perf/workload"
)

const (
	grpcService = "ringnet.Benchmark"
	grpcUnary   = "/" + grpcService + "/Unary"
	unaryBytes  = 1 << 10 // in each direction
)

// The service is described by hand, and uses messages of package protobuf, so that no code
// has to be generated.
var grpcDescription = grpc.ServiceDesc{
	ServiceName: grpcService,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Unary",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			return in, decode(in)
		},
	}},
}

func newGRPCServer() *grpc.Server {
	s := grpc.NewServer()
	s.RegisterService(&grpcDescription, nil)
	return s
}

func openGRPC(cl workload.Client) (*workload.Session, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return cl.Dial(ctx) }
	clients, closeAll, err := workload.OpenAll(cl.Conns, func() (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///benchmark", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	})
	if err != nil {
		return nil, err
	}
	in := wrapperspb.Bytes(make([]byte, unaryBytes))
	return &workload.Session{
		Bytes: 2 * unaryBytes, Timed: true, Close: closeAll,
		Run: func(worker, n int, times *workload.Times) error {
			return workload.Each(n, times, func() error {
				return clients[worker].Invoke(cl.Context, grpcUnary, in, new(wrapperspb.BytesValue))
			})
		},
	}, nil
}
