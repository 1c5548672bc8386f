package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/benchmarks/process"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// onCard is how a workload is measured with both ends in one process on an RDMA device, and on
// which ideal card.
type onCard struct {
	conns   []int
	latency time.Duration
	dma     string // copy unless it is free: payloads arrive where somebody looks at them
	procs   int    // GOMAXPROCS, if not that of the machine
	ours    bool   // TCP, which would not be on the card, is left out
}

// Of GOMAXPROCS goroutines, one less may poll at once, and here both ends share them.
const bothPoll = 4

const (
	row         = 40 // messages
	rowPosition = 10 // of the one that is measured
	rowGap      = 50 * time.Microsecond
	rowBytes    = 64 // of a message of a row, and of others that are short
	lentSize    = 1 << 20
)

var one = []int{1}

// cardBenchmarks are those for two ends in one process.
func cardBenchmarks() []*benchmark {
	far := workload.PingPong
	far.Key, far.Name, far.Sized = "ping-pong-1us", "ping-pong of 64 B, half the round trip, a card 1 µs away", false
	far.Open = func(cl workload.Client) (*workload.Session, error) {
		cl.Size = rowBytes
		return workload.PingPong.Open(cl)
	}
	event := fmt.Sprintf("message %d of a row, %v after one another, from Write to Read", rowPosition, rowGap)
	return []*benchmark{
		{Workload: workload.Workload{Key: "turn", Name: "Write and Read of 64 B in one goroutine", Open: openTurn},
			protocol: "pair", alone: true, card: onCard{conns: one}},
		{Workload: far, protocol: "messages", card: onCard{conns: one, latency: time.Microsecond, dma: "free", procs: bothPoll, ours: true}},
		{Workload: workload.Workload{Key: "lent", Name: "WriteBuffer and Peek of 1 MiB, no copy", Open: openLent},
			protocol: "messages", alone: true, card: onCard{conns: one, dma: "free", ours: true}},
		{Workload: workload.Workload{Key: "event-10", Name: event, Open: openRow},
			protocol: "pair", alone: true, card: onCard{conns: one, procs: bothPoll}},
	}
}

// coarse is how many operations with a size are timed together on a card, where they are as short
// as a look at the clock.
func coarse(size int) int { return max(4, min(64, 256<<10/max(size, 1))) }

// accepted has the other ends of connections to a server of the protocol pair, in this process.
var accepted = make(chan net.Conn)

// openPair makes a connection, and returns its other end, too.
func openPair(cl workload.Client) (a, b net.Conn, closeAll func(), err error) {
	conns, closeAll, err := cl.DialAll()
	if err != nil {
		return nil, nil, nil, err
	}
	return conns[0], <-accepted, closeAll, nil
}

func openTurn(cl workload.Client) (*workload.Session, error) {
	a, b, closeAll, err := openPair(cl)
	if err != nil {
		return nil, err
	}
	from, to := make([]byte, rowBytes), make([]byte, rowBytes)
	return &workload.Session{
		Bytes: rowBytes, Timed: true, Several: coarse(rowBytes), Close: closeAll,
		Run: func(_, n int, times *workload.Times) error {
			return workload.Each(n, times, func() error {
				if _, err := a.Write(from); err != nil {
					return err
				}
				_, err := io.ReadFull(b, to)
				return err
			})
		},
	}, nil
}

// openRow measures a message of each row, which has the time of its Write. The reader answers each
// row.
func openRow(cl workload.Client) (*workload.Session, error) {
	a, b, closeAll, err := openPair(cl)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	go func() {
		for writeRow(a, began) == nil {
		}
	}()
	buf := make([]byte, rowBytes)
	return &workload.Session{
		Bytes: rowBytes, Timed: true, Several: row, Close: closeAll,
		Run: func(_, n int, times *workload.Times) error {
			for range n / row {
				for n := 1; n <= row; n++ {
					if _, err := io.ReadFull(b, buf); err != nil {
						return err
					}
					if n == rowPosition {
						times.Record(time.Since(began) - time.Duration(binary.LittleEndian.Uint64(buf)))
					}
				}
				if _, err := b.Write(buf); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

func writeRow(c net.Conn, began time.Time) error {
	buf := make([]byte, rowBytes)
	next := time.Now()
	for range row {
		next = workload.Compute(next, rowGap)
		binary.LittleEndian.PutUint64(buf, uint64(time.Since(began)))
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c, buf)
	return err
}

// drop asks a server of messages for serveDrop.
const drop = workload.FirstOwn

// serveDrop drops as many bytes as the client says, without a copy, and then sends one byte.
func serveDrop(conn net.Conn) error {
	c, ok := conn.(*ringnet.Conn)
	if !ok {
		return errors.New("bytes are lent over ringnet alone")
	}
	var left uint64
	if err := binary.Read(c, binary.LittleEndian, &left); err != nil {
		return err
	}
	for left > 0 {
		if _, err := c.Peek(1); err != nil {
			return err
		}
		n, err := c.Discard(int(min(left, uint64(c.Buffered()))))
		if err != nil {
			return err
		}
		left -= uint64(n)
	}
	_, err := c.Write([]byte{0})
	return err
}

// filler fills buffers as a file would whose device writes to memory by itself.
type filler struct{}

func (filler) Read(p []byte) (int, error) { return len(p), nil }

// openLent is a stream in which neither end copies. What a program does with its bytes is left out.
func openLent(cl workload.Client) (*workload.Session, error) {
	conns, closeAll, err := cl.DialAll()
	if err != nil {
		return nil, err
	}
	c := conns[0].(*ringnet.Conn)
	var buffers [2]*ringnet.Buffer
	for i := range buffers {
		if buffers[i], err = c.NewBuffer(lentSize); err != nil {
			closeAll()
			return nil, err
		}
	}
	write := func(b *ringnet.Buffer) error {
		b.Wait()
		if _, err := b.Fill(filler{}); err != nil {
			return err
		}
		_, err := c.WriteBuffer(b)
		return err
	}
	return &workload.Session{
		Bytes: lentSize, Close: closeAll,
		Run: func(_, n int, _ *workload.Times) error {
			err := errors.Join(workload.Request(c, drop, 0, 0), binary.Write(c, binary.LittleEndian, uint64(n)*lentSize))
			for i := 0; i < n && err == nil; i++ {
				err = write(buffers[i%len(buffers)])
			}
			if err == nil {
				_, err = io.ReadFull(c, make([]byte, 1))
			}
			return err
		},
	}, nil
}

// on is the call on the ideal card.
func (c onCard) on(card string, call process.Call) process.Call {
	args := []string{"-latency", c.latency.String(), "-dma", cmp.Or(c.dma, "copy"), "--", call.Program}
	call.Program, call.Args = card, append(args, call.Args...)
	if c.procs > 0 {
		call.Env = []string{fmt.Sprintf("GOMAXPROCS=%d", c.procs)}
	}
	return call
}
