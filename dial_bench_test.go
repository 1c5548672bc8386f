package ringnet

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/transport"
)

// BenchmarkDial measures Dial and Close of auto to a server that has TCP alone, and to one
// whose link is up; beside them TCP and "shm" alone.
func BenchmarkDial(b *testing.B) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	listener, err := Listen("auto", "127.0.0.1:0")
	require.NoError(b, err)
	for _, l := range []net.Listener{plain, listener} {
		b.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				}()
			}
		}()
	}
	var d Dialer
	for _, bench := range []struct {
		name    string
		dial    func(network, address string) (net.Conn, error)
		network string
		to      net.Listener
	}{
		{"tcp server/net", net.Dial, "tcp", plain},
		{"tcp server/auto", d.Dial, "auto", plain},
		{"auto listener/shm", d.Dial, "shm", listener},
		{"auto listener/auto", d.Dial, "auto", listener},
		{"auto listener/dedicated", (&Dialer{Config: &Config{Dedicated: true}}).Dial, "auto", listener},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				c, err := bench.dial(bench.network, bench.to.Addr().String())
				require.NoError(b, err)
				transport.Reset(c.(interface { // leaves no TIME_WAIT
					SetLinger(sec int) error
					Close() error
				}))
			}
		})
	}
}
