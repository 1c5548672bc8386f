package rconn_test

import (
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

// life is what one end has sent and received, and how that ended.
type life struct {
	c        *rconn.Conn
	buffer   *rconn.Buffer
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
	a := &life{c: client, out: 1, in: 2, stop: math.MaxInt}
	b := &life{c: server, out: 2, in: 1, stop: math.MaxInt}
	rude := r.IntN(4) == 0
	if rude {
		a.stop = r.IntN(total)
	}
	var all sync.WaitGroup
	for i, l := range []*life{a, b} {
		var writing, reading sync.WaitGroup
		writing.Go(func() { l.write(total, rand.New(rand.NewPCG(seed, uint64(i)))) })
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
func (l *life) write(total int, r *rand.Rand) {
	defer func() {
		if l.buffer != nil {
			_ = l.buffer.Close()
		}
	}()
	for l.sent < total {
		b := make([]byte, 1+r.IntN(1<<r.IntN(16)))
		l.out.fill(b, l.sent)
		if r.IntN(4) == 0 {
			_ = l.c.SetWriteDeadline(soon(r))
		}
		n, err := l.writeOneWayOrAnother(b, r)
		l.sent += n
		if isDeadline(err) {
			_ = l.c.SetWriteDeadline(time.Time{})
		} else if err != nil {
			return
		}
	}
	l.finished = l.c.CloseWrite() == nil
}

func (l *life) writeOneWayOrAnother(b []byte, r *rand.Rand) (int, error) {
	switch r.IntN(3) {
	case 0:
		return l.c.Write(b)
	case 1:
		return l.writeBuffer(b)
	}
	bufs, size := cut(b, r), len(b)
	n, err := l.c.WriteBuffers(&bufs)
	if left := sizeOf(bufs); int(n)+left != size {
		err = fmt.Errorf("%d bytes accepted and %d left of %d", n, left, size)
	}
	clear(b) // Write no longer needs the bytes
	return int(n), err
}

// writeBuffer writes b from a buffer, and drops what was not accepted.
func (l *life) writeBuffer(b []byte) (int, error) {
	if l.buffer == nil {
		buffer, err := l.c.NewBuffer(1 << 16)
		if err != nil {
			return 0, err
		}
		l.buffer = buffer
	}
	l.buffer.Wait()
	if _, err := l.buffer.Write(b); err != nil {
		return 0, err
	}
	n, err := l.c.WriteBuffer(l.buffer)
	if err != nil {
		_ = l.buffer.Close()
		l.buffer = nil
	}
	return n, err
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
