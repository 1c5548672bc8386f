package rconn_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/direct"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/rconn"
)

var benchmarkSizes = []int{64, 512, 4 << 10, 64 << 10}

// benchEachFabric runs a benchmark over every fabric that this machine has. Direct costs
// next to nothing: over it the library's own share is measured.
func benchEachFabric(b *testing.B, run func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn))) {
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
				b.Skip("no RDMA device: SOFTROCE_ADDR is not set; bin/softroce sets it")
			}
			f, err := verbs.Fabric()
			skipIfUnsupported(b, err)
			return venue{Fabric: f, addr: addr}.connect(b, nil, nil)
		},
	}
	for _, name := range []string{"direct", "sim", "shm", "verbs"} {
		b.Run(name, func(b *testing.B) { run(b, connects[name]) })
	}
}

// overEachFabricOfSize is benchEachFabric for each size of messages.
func overEachFabricOfSize(b *testing.B, run func(b *testing.B, client, server *rconn.Conn, p []byte)) {
	benchEachFabric(b, func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn)) {
		for _, size := range benchmarkSizes {
			b.Run(strconv.Itoa(size), func(b *testing.B) {
				client, server := connect(b)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				run(b, client, server, make([]byte, size))
			})
		}
	})
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

// BenchmarkWriteRead is one Write and one Read in one goroutine: over direct it measures
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

// BenchmarkStream is one Write, while another goroutine reads what has arrived.
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
		b.ReportMetric(float64(client.Link().Events)/writes, "events/op")
	})
}

// BenchmarkCopyFile is io.Copy of a file of 1 MiB that is in memory: read
// straight into the send buffer, and as it would be without ReadFrom.
func BenchmarkCopyFile(b *testing.B) {
	benchEachFabric(b, func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn)) {
		copies := func(name string, to func(c *rconn.Conn) io.Writer) {
			b.Run(name, func(b *testing.B) {
				client, server := connect(b)
				const size = 1 << 20
				f := patternFile(b, 1, size)
				go io.Copy(io.Discard, server)
				b.SetBytes(size)
				for b.Loop() {
					if _, err := f.Seek(0, io.SeekStart); err != nil {
						b.Fatal(err)
					}
					if n, err := io.Copy(to(client), f); n != size || err != nil {
						b.Fatal(n, err)
					}
				}
			})
		}
		copies("ReadFrom", func(c *rconn.Conn) io.Writer { return c })
		copies("Write", func(c *rconn.Conn) io.Writer { return struct{ io.Writer }{c} })
	})
}
