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

	"github.com/ringnet/ringnet/internal/fabric/direct"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/rconn"
)

var benchmarkSizes = []int{64, 512, 4 << 10, 64 << 10}

// overEachFabricOfSize runs a benchmark over every fabric that this machine has,
// for each size of messages. Over direct, which costs next to nothing, what is
// left is the library's own share.
func overEachFabricOfSize(b *testing.B, run func(b *testing.B, client, server *rconn.Conn, p []byte)) {
	connects := map[string]func(b *testing.B) (client, server *rconn.Conn){
		"direct": directly,
		"sim": func(b *testing.B) (client, server *rconn.Conn) {
			return venue{Fabric: sim.New(sim.Link{}), addr: simAddr}.connect(b, nil, nil)
		},
		"shm": func(b *testing.B) (client, server *rconn.Conn) {
			f, err := shm.Fabric()
			skipIfUnsupported(b, err)
			return venue{Fabric: f, addr: netip.MustParseAddr("127.0.0.1")}.connect(b, nil, nil)
		},
		"verbs": func(b *testing.B) (client, server *rconn.Conn) {
			addr, err := netip.ParseAddr(os.Getenv("SOFTROCE_ADDR"))
			if err != nil {
				b.Skip("no RDMA device: SOFTROCE_ADDR is not set; go run ./tools/softroce sets it")
			}
			f, err := verbs.Fabric()
			skipIfUnsupported(b, err)
			return venue{Fabric: f, addr: addr}.connect(b, nil, nil)
		},
	}
	for _, name := range []string{"direct", "sim", "shm", "verbs"} {
		for _, size := range benchmarkSizes {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				client, server := connects[name](b)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				run(b, client, server, make([]byte, size))
			})
		}
	}
}

func directly(b *testing.B) (client, server *rconn.Conn) {
	dialing, listening := direct.Pair()
	accepted := make(chan error, 1)
	go func() {
		var err error
		server, err = rconn.Server(b.Context(), "direct", listening, nil)
		accepted <- err
	}()
	client, err := rconn.Client(b.Context(), "direct", dialing, nil)
	require.NoError(b, err)
	require.NoError(b, <-accepted)
	b.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

func skipIfUnsupported(b *testing.B, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		b.Skip(err)
	}
	require.NoError(b, err)
}

// BenchmarkWriteRead is one Write and one Read in one goroutine: over direct
// the library's own share of a message.
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
		stats := client.Stats()
		writes := float64(stats.BytesWritten) / float64(len(p))
		b.ReportMetric(float64(stats.MessagesSent)/writes, "messages/op")
		b.ReportMetric(float64(stats.Events)/writes, "events/op")
	})
}
