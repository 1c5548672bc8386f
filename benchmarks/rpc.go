package main

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
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

func newGRPCClient(dial func(context.Context) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///benchmark",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func callUnary(ctx context.Context, c *grpc.ClientConn, in *wrapperspb.BytesValue) error {
	return c.Invoke(ctx, grpcUnary, in, new(wrapperspb.BytesValue))
}
