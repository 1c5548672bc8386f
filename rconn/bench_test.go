package rconn_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/rconn"
)

// benchEachFabric runs a benchmark over every fabric that this machine has. Over sim,
// which has no device and no kernel, most is the library's own share.
func benchEachFabric(b *testing.B, run func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn))) {
	for name, over := range realTime {
		b.Run(name, func(b *testing.B) {
			v := over(b)
			run(b, func(b *testing.B) (client, server *rconn.Conn) { return v.connect(b, nil, nil) })
		})
	}
}

// realTime is the fabrics, in real time.
var realTime = map[string]func(testing.TB) venue{
	"sim":   func(testing.TB) venue { return venue{Fabric: sim.New(sim.Link{}), addr: simAddr} },
	"shm":   shmVenue,
	"verbs": verbsVenue,
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

// BenchmarkWriteBuffer reads bytes from a reader and writes them, with a slice and Write,
// and with two buffers, while the peer drops them.
func BenchmarkWriteBuffer(b *testing.B) {
	benchEachFabric(b, func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn)) {
		for _, size := range []int{64 << 10, 1 << 20} {
			from := make([]byte, size)
			run := func(name string, prepare func(b *testing.B, c *rconn.Conn) func(r io.Reader) error) {
				b.Run(fmt.Sprintf("%d/%s", size, name), func(b *testing.B) {
					client, server := connect(b)
					go drop(server)
					write := prepare(b, client)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					r := bytes.NewReader(nil)
					for b.Loop() {
						r.Reset(from)
						if err := write(r); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			run("Write", func(_ *testing.B, c *rconn.Conn) func(io.Reader) error {
				p := make([]byte, size)
				return func(r io.Reader) error {
					_, err := io.ReadFull(r, p)
					if err == nil {
						_, err = c.Write(p)
					}
					return err
				}
			})
			run("WriteBuffer", func(b *testing.B, c *rconn.Conn) func(io.Reader) error {
				var two [2]*rconn.Buffer
				for i := range two {
					var err error
					two[i], err = c.NewBuffer(size)
					require.NoError(b, err)
					b.Cleanup(func() { _ = two[i].Close() })
				}
				turn := 0
				return func(r io.Reader) error {
					turn++
					next := two[turn%2]
					next.Wait()
					_, err := next.Fill(r)
					if err == nil {
						_, err = c.WriteBuffer(next)
					}
					return err
				}
			})
		}
	})
}

// BenchmarkWriteBuffers writes a header and a body to a peer that reads: with one call, and
// with two.
func BenchmarkWriteBuffers(b *testing.B) {
	ways := []struct {
		name  string
		write func(c *rconn.Conn, bufs *net.Buffers) (int64, error)
	}{
		{"WriteBuffers", (*rconn.Conn).WriteBuffers},
		{"WriteTo", func(c *rconn.Conn, bufs *net.Buffers) (int64, error) { return bufs.WriteTo(c) }},
	}
	benchEachFabric(b, func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn)) {
		for _, sizes := range [][]int{{16, 16, 16, 16}, {100, 4 << 10}, {100, 64 << 10}, {512 << 10, 512 << 10}} {
			for _, way := range ways {
				b.Run(fmt.Sprintf("%v/%s", sizes, way.name), func(b *testing.B) {
					client, server := connect(b)
					go io.Copy(io.Discard, struct{ io.Reader }{server})
					var pieces, bufs, left net.Buffers
					for _, n := range sizes {
						pieces = append(pieces, make([]byte, n))
					}
					b.SetBytes(int64(sizeOf(pieces)))
					b.ReportAllocs()
					for b.Loop() {
						bufs = append(bufs[:0], pieces...)
						left = bufs
						if _, err := way.write(client, &left); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	})
}

// BenchmarkReceive is a stream of Writes to a peer that reads with copies and without, and
// drops what it reads, or looks at every byte once.
func BenchmarkReceive(b *testing.B) {
	read := func(c *rconn.Conn, see func(p []byte)) error {
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				return err
			}
			see(b[:n])
		}
	}
	peek := func(c *rconn.Conn, see func(p []byte)) error {
		for {
			if _, err := c.Peek(1); err != nil {
				return err
			}
			p, err := c.Peek(c.Buffered())
			if err != nil {
				return err
			}
			see(p)
			if _, err := c.Discard(len(p)); err != nil {
				return err
			}
		}
	}
	drop := func([]byte) {}
	sum := func(p []byte) { crc32.Update(0, crc32.MakeTable(crc32.Castagnoli), p) }
	benchEachFabric(b, func(b *testing.B, connect func(b *testing.B) (client, server *rconn.Conn)) {
		for _, size := range []int{64 << 10, 1 << 20} {
			for _, way := range []struct {
				name    string
				receive func(c *rconn.Conn, see func(p []byte)) error
				see     func(p []byte)
			}{{"Read/drop", read, drop}, {"Peek/drop", peek, drop}, {"Read/crc", read, sum}, {"Peek/crc", peek, sum}} {
				b.Run(fmt.Sprintf("%d/%s", size, way.name), func(b *testing.B) {
					client, server := connect(b)
					p := make([]byte, size)
					done := started(func() error { return way.receive(server, way.see) })
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for b.Loop() {
						if _, err := client.Write(p); err != nil {
							b.Fatal(err)
						}
					}
					b.StopTimer()
					require.NoError(b, client.CloseWrite())
					require.Equal(b, io.EOF, <-done)
				})
			}
		}
	})
}

// drop discards all that arrives, without a copy.
func drop(c *rconn.Conn) {
	for {
		if _, err := c.Peek(1); err != nil {
			return
		}
		if _, err := c.Discard(c.Buffered()); err != nil {
			return
		}
	}
}
