//go:build linux

// Raw queue pairs, without a protocol above them, beside a Unix socket in the
// same form.

package shm

import (
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// benchOptions are what package rconn asks for by default.
var benchOptions = fabric.Options{SendQueue: 128, RecvQueue: 267, RecvSize: 24, RemoteMemory: 1 << 20}

const benchWindow = 256

// next returns the next message and posts its receive again. It polls for a
// while before it sleeps.
func (s *stream) next() (fabric.Completion, error) {
	for polls := 0; ; polls++ {
		n, err := s.Poll(s.c[:1])
		switch {
		case err != nil:
			return fabric.Completion{}, err
		case n == 1 && s.c[0].Status != fabric.OK:
			return s.c[0], errFlushed
		case n == 1:
			return s.c[0], s.PostRecv(1)
		case polls < spin:
			runtime.Gosched()
		case polls == spin:
			err = s.Arm()
		default:
			err = s.Wait()
			polls = 0
		}
		if err != nil {
			return fabric.Completion{}, err
		}
	}
}

func (s *stream) write(b []byte) error {
	err := s.PostSend([]fabric.WorkRequest{{Op: fabric.WriteImm, Data: b, RKey: s.peerKey, Signaled: s.posted%16 == 15}})
	if s.head != s.tail.Load() {
		s.Poll(s.c[:1])
	}
	return err
}

// bench programs: pong returns every message, sink takes them and returns one
// byte when it has all.
func benchProgram(at netip.AddrPort, args []string) error {
	f, err := Fabric()
	if err != nil {
		return err
	}
	e, err := dial(f, at, benchOptions)
	if err != nil {
		return err
	}
	s, err := exchangeKeys(e)
	if err != nil {
		return err
	}
	return bounce(s, args[0], args[1])
}

func bounce(s *stream, mode, size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	b := make([]byte, n)
	for {
		c, err := s.next()
		if err != nil {
			return err
		}
		if c.Op == fabric.Send {
			return nil // the benchmark is over
		}
		copy(b, s.mem.Bytes()[:c.Len])
		if mode == "sink" {
			if s.received++; s.received%(benchWindow/4) != 0 {
				continue
			}
			b = b[:1]
		}
		if err := s.write(b); err != nil {
			return err
		}
		b = b[:n]
	}
}

// overBoth runs a benchmark against a goroutine and against a process.
func overBoth(b *testing.B, mode string, size int, run func(b *testing.B, s *stream)) {
	b.Run("goroutine", func(b *testing.B) {
		x, y := connected(b, benchOptions)
		done := make(chan error)
		go func() { done <- bounce(&stream{end: y, peerKey: x.mem.RKey()}, mode, strconv.Itoa(size)) }()
		run(b, &stream{end: x, peerKey: y.mem.RKey()})
		post(b, x, send(0, "over"))
		require.NoError(b, <-done)
	})
	b.Run("process", func(b *testing.B) {
		l := listen(b, newFabric(b), 1)
		p := start(b, program("bench", l.Addr(), mode, strconv.Itoa(size)))
		e, err := accept(l, benchOptions)
		require.NoError(b, err)
		defer e.Close()
		s, err := exchangeKeys(e)
		require.NoError(b, err)
		run(b, s)
		post(b, e, send(0, "over"))
		require.NoError(b, p.Wait(), "%s", p.err)
	})
}

// BenchmarkMessage is the work of both ends on one message, done by one of them:
// no time passes between processors.
func BenchmarkMessage(b *testing.B) {
	for _, size := range []int{0, 64, 4096} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			x, y := connected(b, benchOptions)
			s, r := &stream{end: x, peerKey: y.mem.RKey()}, &stream{end: y}
			data := make([]byte, size)
			for b.Loop() {
				if err := s.write(data); err != nil {
					b.Fatal(err)
				}
				if _, err := r.next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{64, 4096} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			data := make([]byte, size)
			overBoth(b, "pong", size, func(b *testing.B, s *stream) {
				for b.Loop() {
					if err := s.write(data); err != nil {
						b.Fatal(err)
					}
					_, err := s.next()
					require.NoError(b, err)
				}
			})
			b.Run("unix", func(b *testing.B) {
				c, d := unixPair(b)
				go io.Copy(d, d)
				for b.Loop() {
					_, err := c.Write(data)
					require.NoError(b, err)
					_, err = io.ReadFull(c, data)
					require.NoError(b, err)
				}
			})
		})
	}
}

func BenchmarkStream(b *testing.B) {
	for _, size := range []int{64, 4096, ringSize} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			data := make([]byte, size)
			overBoth(b, "sink", size, func(b *testing.B, s *stream) {
				b.SetBytes(int64(size))
				for b.Loop() {
					if s.sent-s.credit == benchWindow {
						_, err := s.next()
						require.NoError(b, err)
						s.credit += benchWindow / 4
					}
					s.sent++
					if err := s.write(data); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("unix", func(b *testing.B) {
				c, d := unixPair(b)
				go io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{d}, make([]byte, ringSize))
				b.SetBytes(int64(size))
				for b.Loop() {
					_, err := c.Write(data)
					require.NoError(b, err)
				}
			})
		})
	}
}

func BenchmarkConnect(b *testing.B) {
	f := newFabric(b)
	l := listen(b, f, 1)
	for b.Loop() {
		x, y := connectTo(b, f, l, benchOptions)
		x.Close()
		y.Close()
	}
}

func unixPair(b *testing.B) (c, d net.Conn) {
	l, err := net.Listen("unix", filepath.Join(b.TempDir(), "s"))
	require.NoError(b, err)
	defer l.Close()
	c, err = net.Dial("unix", l.Addr().String())
	require.NoError(b, err)
	d, err = l.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { c.Close(); d.Close() })
	return c, d
}

// BenchmarkRefused measures a dial of an address without a listener.
func BenchmarkRefused(b *testing.B) {
	f := newFabric(b)
	for b.Loop() {
		_, err := dial(f, netip.AddrPortFrom(host, 1), benchOptions)
		require.Error(b, err)
	}
}
