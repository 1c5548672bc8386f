// Package grpcnet runs gRPC over package ringnet. A server and a client need a line each:
//
//	l, err := grpcnet.Listen("auto", ":50051")
//	s := grpc.NewServer(grpc.Creds(grpcnet.NewCredentials(tls)))
//	err = s.Serve(l)
//
//	cc, err := grpc.NewClient("server.example:50051", grpcnet.WithDialer(nil), grpc.WithTransportCredentials(grpcnet.NewCredentials(tls)))
//
// The credentials hold on every network, over shm too, so tls above may as well be given to gRPC itself.
// [NewLocalCredentials] leaves them out between processes of one user over shm.
//
// gRPC resolves the names, and balances, as it does over TCP: no target needs "passthrough:". With the
// network auto, peers that do not use ringnet are reached over TCP.
//
// A connection that waits has no read buffer: gRPC takes one when bytes have arrived (from version
// 1.84 on, unless GRPC_GO_EXPERIMENTAL_HTTP_FRAMER_READ_BUFFER_POOLING is false, and not under TLS).
//
// gRPC's own end-to-end tests pass over auto, with shared memory as the carrier (tools/grpctests.sh, in
// make soak). What differs from TCP: a listener and an idle link have goroutines, which a test that
// counts them finds.
//
// What gRPC has no way for: its transport gathers frames in a buffer of its own
// (grpc.WriteBufferSize) and writes that, so a message is copied once more than a
// ringnet.Buffer would need; and channelz shows options of a socket, which there is over TCP alone.
package grpcnet
