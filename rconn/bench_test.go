package rconn_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/rconn"
)

var benchmarkSizes = []int{64, 512, 4 << 10, 64 << 10}

// overEachFabricOfSize runs a benchmark over every fabric that this machine has,
// for each size of messages. Over sim the link is instant: what is left is the
// library's own share.
func overEachFabricOfSize(b *testing.B, run func(b *testing.B, client, server *rconn.Conn, p []byte)) {
	venues := map[string]func(b *testing.B) venue{
		"sim": func(*testing.B) venue { return venue{Fabric: sim.New(sim.Link{}), addr: simAddr} },
		"shm": func(b *testing.B) venue {
			f, err := shm.Fabric()
			skipIfUnsupported(b, err)
			return venue{Fabric: f, addr: netip.MustParseAddr("127.0.0.1")}
		},
		"verbs": func(b *testing.B) venue {
			addr, err := netip.ParseAddr(os.Getenv("SOFTROCE_ADDR"))
			if err != nil {
				b.Skip("no RDMA device: SOFTROCE_ADDR is not set; go run ./tools/softroce sets it")
			}
			f, err := verbs.Fabric()
			skipIfUnsupported(b, err)
			return venue{Fabric: f, addr: addr}
		},
	}
	for _, name := range []string{"sim", "shm", "verbs"} {
		for _, size := range benchmarkSizes {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				client, server := venues[name](b).connect(b, nil, nil)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				run(b, client, server, make([]byte, size))
			})
		}
	}
}

func skipIfUnsupported(b *testing.B, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		b.Skip(err)
	}
	require.NoError(b, err)
}

// BenchmarkWriteRead is one Write and one Read in one goroutine: over sim the
// library's own share of a message.
func BenchmarkWriteRead(b *testing.B) {
	overEachFabricOfSize(b, func(b *testing.B, client, server *rconn.Conn, p []byte) {
		for b.Loop() {
			if _, err := client.Write(p); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(server, p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPingPong is a round trip between two goroutines.
func BenchmarkPingPong(b *testing.B) {
	overEachFabricOfSize(b, func(b *testing.B, client, server *rconn.Conn, p []byte) {
		go echoMessages(server, len(p))
		for b.Loop() {
			if _, err := client.Write(p); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(client, p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// echoMessages sends messages of n bytes back until the connection ends.
func echoMessages(c net.Conn, n int) {
	p := make([]byte, n)
	for {
		if _, err := io.ReadFull(c, p); err != nil {
			return
		}
		if _, err := c.Write(p); err != nil {
			return
		}
	}
}

// BenchmarkStream is one Write, while another goroutine reads what there is.
func BenchmarkStream(b *testing.B) {
	overEachFabricOfSize(b, func(b *testing.B, client, server *rconn.Conn, p []byte) {
		go func() {
			into := make([]byte, 64<<10)
			for {
				if _, err := server.Read(into); err != nil {
					return
				}
			}
		}()
		for b.Loop() {
			if _, err := client.Write(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
