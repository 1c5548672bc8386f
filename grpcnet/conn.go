package grpcnet

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/ringnet/ringnet"
)

// stream is what Dial and Accept of package ringnet return: a *ringnet.Conn or a *ringnet.AutoConn.
type stream interface {
	net.Conn
	AwaitRead() error
	PeerUser() (uid uint32, known bool)
	Carrier() string
}

// conn is a connection as gRPC sees it.
type conn struct{ stream }

// ReadOnReady implements an interface of gRPC's transport: it waits for bytes, and then reads into
// a buffer from the pool.
func (c conn) ReadOnReady(size int, pool mem.BufferPool) (b *[]byte, n int, err error) {
	if err := c.AwaitRead(); err != nil {
		return nil, 0, err
	}
	b = pool.Get(size)
	n, err = c.Read(*b)
	if n == 0 {
		pool.Put(b)
		return nil, 0, err
	}
	return b, n, err
}

// WithDialer returns the option for [grpc.NewClient] with which all connections of the client are
// dialed by d over its ForTCP, or over auto where that is "". d may be nil, which is the zero Dialer.
// It is copied; connections of clients with equal Dialers share links. Targets of the schemes unix and
// unix-abstract are sockets of that kind.
func WithDialer(d *ringnet.Dialer) grpc.DialOption {
	var own ringnet.Dialer
	if d != nil {
		own = *d
	}
	if own.ForTCP == "" {
		own.ForTCP = "auto"
	}
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		network, addr := networkOf(addr)
		c, err := own.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return wrap(c), nil
	})
}

// networkOf returns what to dial for an address of gRPC's. One of the scheme unix still has the scheme:
// unix:///absolute or unix:relative; a name of unix-abstract begins with a zero byte.
func networkOf(addr string) (network, address string) {
	path, isUnix := strings.CutPrefix(addr, "unix:")
	switch {
	case isUnix:
		return "unix", strings.TrimPrefix(path, "//")
	case strings.HasPrefix(addr, "\x00"):
		return "unix", addr
	}
	return "tcp", addr
}

// wrap is what gRPC gets of a connection.
func wrap(c net.Conn) net.Conn {
	if s, ok := c.(stream); ok {
		return conn{s}
	}
	return c
}

// listener accepts connections for gRPC.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return wrap(c), nil
}

// Listen listens as [ringnet.Listen] does, for [grpc.Server.Serve], which closes the listener.
func Listen(network, address string) (net.Listener, error) {
	l, err := ringnet.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return NewListener(l), nil
}

// NewListener returns a listener for [grpc.Server.Serve] that accepts the connections of l, which
// ringnet.Listen or a ringnet.ListenConfig has made. It owns l.
func NewListener(l net.Listener) net.Listener { return listener{l} }
