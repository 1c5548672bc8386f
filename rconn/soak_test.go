package rconn_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/rconn"
)

// soakRounds returns how many connections to try: RINGNET_SOAK multiplies them.
func (v venue) soakRounds(n int) int {
	if times, err := strconv.Atoi(os.Getenv("RINGNET_SOAK")); err == nil {
		return n * times
	}
	return v.times(n)
}

// Each of two ends makes random calls. Whatever these are, what arrives is the beginning of
// what was sent: all of it if the stream ended in order.
func TestRandomLives(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		for seed := range uint64(v.soakRounds(100)) {
			randomLife(t, v, seed)
		}
	})
}

// likeAFile is bytes that ReadFrom takes for a regular file.
type likeAFile struct {
	*bytes.Reader
	file *os.File
}

func (f likeAFile) Stat() (os.FileInfo, error) { return f.file.Stat() }

// life is what one end has sent and received, and how that ended.
type life struct {
	c        *rconn.Conn
	file     *os.File
	out, in  pattern
	sent     int
	received int
	stop     int   // Close after so many bytes have been received
	finished bool  // FIN was sent, and nothing was lost after it
	reason   error // the error of the last Read
}

// randomLife makes random calls on both ends of one connection.
func randomLife(t *testing.T, v venue, seed uint64) {
	r := random(t, seed)
	shape := shapes[r.IntN(len(shapes))]
	client, server := v.connect(t, shape.dialer, shape.listener)
	total := 1 + r.IntN(100_000)
	file := patternFile(t, 0, 0)
	a := &life{c: client, file: file, out: 1, in: 2, stop: math.MaxInt}
	b := &life{c: server, file: file, out: 2, in: 1, stop: math.MaxInt}
	rude := r.IntN(4) == 0
	if rude {
		a.stop = r.IntN(total)
	}
	var all sync.WaitGroup
	for i, l := range []*life{a, b} {
		var writing, reading sync.WaitGroup
		writing.Go(func() { l.write(t, total, rand.New(rand.NewPCG(seed, uint64(i)))) })
		reading.Go(func() { l.read(rand.New(rand.NewPCG(seed, uint64(i+2)))) })
		all.Go(func() {
			writing.Wait()
			reading.Wait()
			_ = l.c.Close()
		})
	}
	all.Wait()
	for _, way := range []struct{ from, to *life }{{a, b}, {b, a}} {
		what := fmt.Sprintf("seed %d, %s: sent %d (ended %t), received %d, then %v",
			seed, shape.name, way.from.sent, way.from.finished, way.to.received, way.to.reason)
		require.LessOrEqual(t, way.to.received, way.from.sent, what)
		switch {
		case way.to.reason == io.EOF:
			require.Equal(t, way.from.sent, way.to.received, what)
		case rude:
			require.True(t, errors.Is(way.to.reason, net.ErrClosed) || errors.Is(way.to.reason, syscall.ECONNRESET), what)
		default:
			require.Fail(t, "not an orderly end", what)
		}
	}
	requireRareCredits(t, client, shape.dialer)
	requireRareCredits(t, server, shape.listener)
}

// write sends up to total bytes, with deadlines and pauses, and then FIN.
func (l *life) write(t *testing.T, total int, r *rand.Rand) {
	for l.sent < total {
		b := make([]byte, 1+r.IntN(1<<r.IntN(16)))
		l.out.fill(b, l.sent)
		if r.IntN(4) == 0 {
			_ = l.c.SetWriteDeadline(soon(r))
		}
		write := l.oneWayOrAnother(t, b, r)
		n, err := write()
		if isDeadline(err) {
			_ = l.c.SetWriteDeadline(time.Time{})
			var m int
			m, err = write() // goes on with what was not accepted
			n += m
		}
		if l.sent += n; err != nil {
			return
		}
	}
	l.finished = l.c.CloseWrite() == nil
}

// oneWayOrAnother returns a function that writes b, and when that has failed the rest of it. It
// returns how many bytes were accepted.
func (l *life) oneWayOrAnother(t *testing.T, b []byte, r *rand.Rand) func() (int, error) {
	size, before := len(b), 0
	accepted := func(n, left int, err error) (int, error) {
		before += n
		assert.Equal(t, size, before+left, "%d bytes accepted", before)
		return n, err
	}
	switch r.IntN(4) {
	case 0:
		bufs := cut(b, r)
		return func() (int, error) {
			n, err := l.c.WriteBuffers(&bufs)
			if err == nil {
				clear(b) // Write no longer needs the bytes
			}
			return accepted(int(n), sizeOf(bufs), err)
		}
	case 1:
		buffer, err := l.c.NewBuffer(size)
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = buffer.Close() })
		_, _ = buffer.Write(b)
		return func() (int, error) {
			n, err := l.c.WriteBuffer(buffer)
			buffer.Wait()
			return accepted(n, buffer.Len(), err)
		}
	case 2:
		f := likeAFile{bytes.NewReader(b), l.file}
		return func() (int, error) {
			n, err := l.c.ReadFrom(f)
			return accepted(int(n), f.Len(), err)
		}
	}
	return func() (int, error) {
		n, err := l.c.Write(b[before:])
		return accepted(n, size-before-n, err)
	}
}

// read checks what arrives until an error ends the stream.
func (l *life) read(r *rand.Rand) {
	b := make([]byte, 1<<16)
	for {
		if l.received >= l.stop {
			if r.IntN(2) == 0 {
				_ = l.c.SetLinger(0)
			}
			_ = l.c.Close()
		}
		if r.IntN(4) == 0 {
			_ = l.c.SetReadDeadline(soon(r))
		}
		n, err := l.readOneWayOrAnother(b[:1+r.IntN(1<<r.IntN(16))], r)
		if wrong := l.in.check(b[:n], l.received); wrong != nil {
			l.reason = wrong
			_ = l.c.Close() // or the peer would write on
			return
		}
		l.received += n
		if isDeadline(err) {
			_ = l.c.SetReadDeadline(time.Time{})
		} else if err != nil {
			l.reason = err
			return
		}
	}
}

func (l *life) readOneWayOrAnother(b []byte, r *rand.Rand) (int, error) {
	if r.IntN(2) == 0 {
		return l.c.Read(b)
	}
	p, err := l.c.Peek(len(b))
	if n := copy(b, p); n > 0 {
		return l.c.Discard(n) // fails if the slice no longer had what has arrived
	}
	return 0, err
}

func isDeadline(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
