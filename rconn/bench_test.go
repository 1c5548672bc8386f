package rconn_test

import (
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// BenchmarkWriteRead is the library's own share of a message: one Write and one
// Read in one goroutine, over a fabric that hands a work request straight to
// the other side's completion queue.
func BenchmarkWriteRead(b *testing.B) {
	for _, size := range []int{64, 512, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			v := venue{Fabric: sim.New(sim.Link{}), addr: netip.MustParseAddr("10.0.0.1")}
			client, server := v.connect(b, nil, nil)
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
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
}
