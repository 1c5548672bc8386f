package main

import (
	"context"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	grpcService = "ringnet.Benchmark"
	grpcUnary   = "/" + grpcService + "/Unary"
	grpcStream  = "/" + grpcService + "/Stream"

	unaryBytes  = 1 << 10  // in each direction
	streamBytes = 64 << 10 // of one message
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
	Streams: []grpc.StreamDesc{{
		StreamName:    "Stream",
		ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			n := new(wrapperspb.UInt64Value)
			if err := s.RecvMsg(n); err != nil {
				return err
			}
			message := wrapperspb.Bytes(make([]byte, streamBytes))
			for range n.Value {
				if err := s.SendMsg(message); err != nil {
					return err
				}
			}
			return nil
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

// receiveStream asks the server for n messages and receives them.
func receiveStream(ctx context.Context, c *grpc.ClientConn, n int) error {
	s, err := c.NewStream(ctx, &grpcDescription.Streams[0], grpcStream)
	if err != nil {
		return err
	}
	if err := s.SendMsg(wrapperspb.UInt64(uint64(n))); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	for {
		switch err := s.RecvMsg(new(wrapperspb.BytesValue)); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}
