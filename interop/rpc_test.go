package interop

import (
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"testing"

	"github.com/stretchr/testify/require"
)

// Reverser is a service for package net/rpc.
type Reverser struct{}

// Reverse returns the bytes backwards, and an error if there are none.
func (Reverser) Reverse(in []byte, out *[]byte) error {
	if len(in) == 0 {
		return errors.New("nothing to reverse")
	}
	*out = make([]byte, len(in))
	for i, b := range in {
		(*out)[len(in)-1-i] = b
	}
	return nil
}

func TestRPC(t *testing.T) {
	codecs := []struct {
		name   string
		serve  func(*rpc.Server, net.Conn)
		client func(net.Conn) *rpc.Client
	}{
		{"gob", func(s *rpc.Server, c net.Conn) { s.ServeConn(c) },
			func(c net.Conn) *rpc.Client { return rpc.NewClient(c) }},
		{"json", func(s *rpc.Server, c net.Conn) { s.ServeCodec(jsonrpc.NewServerCodec(c)) },
			func(c net.Conn) *rpc.Client { return jsonrpc.NewClient(c) }},
	}
	overEachNetwork(t, func(t *testing.T, n network) {
		for _, codec := range codecs {
			t.Run(codec.name, func(t *testing.T) {
				s := rpc.NewServer()
				require.NoError(t, s.Register(Reverser{}))
				l := n.listen(t)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					if c, err := l.Accept(); err == nil {
						codec.serve(s, c)
					}
				}()
				testRPC(t, codec.client(n.dial(t, l)))
				receive(t, ended)
			})
		}
	})
}

// testRPC calls the Reverser: many times at once, with many bytes, with wrong arguments,
// and after the end.
func testRPC(t *testing.T, client *rpc.Client) {
	const calls = 100
	done := make(chan *rpc.Call, calls)
	for i := range calls {
		client.Go("Reverser.Reverse", fmt.Appendf(nil, "call %d", i), new([]byte), done)
	}
	for range calls {
		call := receive(t, done)
		require.NoError(t, call.Error)
		requireReversed(t, call.Args.([]byte), *call.Reply.(*[]byte))
	}

	large := randomBytes(1<<20 + 1)
	var reply []byte
	require.NoError(t, client.Call("Reverser.Reverse", large, &reply))
	requireReversed(t, large, reply)

	require.EqualError(t, client.Call("Reverser.Reverse", []byte{}, &reply), "nothing to reverse")
	require.EqualError(t, client.Call("Reverser.Forget", large, &reply), "rpc: can't find method Reverser.Forget")

	require.NoError(t, client.Close())
	require.ErrorIs(t, client.Call("Reverser.Reverse", large, &reply), rpc.ErrShutdown)
}

func requireReversed(t *testing.T, in, out []byte) {
	t.Helper()
	var want []byte
	require.NoError(t, Reverser{}.Reverse(in, &want))
	requireSame(t, want, out)
}
