package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet/internal/perf"
)

// How a writer is made to wait for a reader that reads and then computes.
const (
	takePause   = 10 * time.Millisecond // time to fill the buffers between the two, and time until the writer waits
	takeCompute = 20 * time.Millisecond
	takeWrite   = 4 << 10   // bytes of the Write that waits
	takeMost    = 256 << 20 // bytes that the buffers may have
)

// taker is a service that reads from one connection as another one orders.
type taker struct{ data atomic.Pointer[net.Conn] }

// takeOrder begins each connection. A zero order makes the connection the one to read from,
// and is answered with a zero order when it is. Another orders the taker to read so many bytes,
// after a pause, from that connection.
type takeOrder struct {
	Bytes int64
	Pause time.Duration
}

func (t *taker) serve(c net.Conn) error {
	var order takeOrder
	if err := binary.Read(c, binary.LittleEndian, &order); err != nil {
		return err
	}
	if order == (takeOrder{}) {
		t.data.Store(&c)
		return binary.Write(c, binary.LittleEndian, order)
	}
	defer c.Close()
	data := t.data.Load()
	if data == nil || order.Bytes < 0 || order.Bytes > takeMost {
		return fmt.Errorf("%d bytes are not there to be taken", order.Bytes)
	}
	time.Sleep(order.Pause)
	times, err := takeAndCompute(*data, order.Bytes)
	if err != nil {
		return err
	}
	return binary.Write(c, binary.LittleEndian, times)
}

// takeTimes are times of the reader's clock, in nanoseconds since 1970.
type takeTimes struct{ Began, Took int64 }

// takeAndCompute reads n bytes, which have all arrived, computes, and reads on to the end.
func takeAndCompute(c net.Conn, n int64) (t takeTimes, err error) {
	buf := make([]byte, n)
	t.Began = time.Now().UnixNano()
	if _, err := io.ReadFull(c, buf); err != nil {
		return t, err
	}
	took := time.Now()
	t.Took = took.UnixNano()
	perf.Compute(took, takeCompute)
	for err == nil {
		_, err = c.Read(buf)
	}
	if err == io.EOF {
		err = nil
	}
	return t, err
}

// errNoWait: this machine is so busy that the writer did not come to wait in time.
var errNoWait = errors.New("the Write did not wait for its reader")

// takeOnce fills the buffers between the two sides, and then writes more. It returns how
// long after the reader has read all that this Write, which has to wait for the reader,
// returns: 1 ns if it returns before that. Both processes must have the same clock.
func takeOnce(cl perf.Client, pause time.Duration) (time.Duration, error) {
	cl.Conns = 2
	conns, closeAll, err := cl.DialAll()
	if err != nil {
		return 0, err
	}
	defer closeAll()
	data, control := conns[0], conns[1]
	order := takeOrder{}
	if err := binary.Write(data, binary.LittleEndian, order); err != nil {
		return 0, err
	}
	if err := binary.Read(data, binary.LittleEndian, &order); err != nil {
		return 0, err
	}
	n, err := fill(data, pause)
	if err != nil {
		return 0, err
	}
	if err := binary.Write(control, binary.LittleEndian, takeOrder{n, pause}); err != nil {
		return 0, err
	}
	if _, err := data.Write(make([]byte, takeWrite)); err != nil {
		return 0, err
	}
	returned := time.Now().UnixNano()
	if err := closeWrite(data); err != nil {
		return 0, err
	}
	var t takeTimes
	if err := binary.Read(control, binary.LittleEndian, &t); err != nil {
		return 0, err
	}
	if returned < t.Began {
		return 0, errNoWait
	}
	return time.Duration(max(1, returned-t.Took)), nil
}

// fill writes until the buffers are full and d has passed, and returns how many bytes it
// has written.
func fill(c net.Conn, d time.Duration) (total int64, err error) {
	if err := c.SetWriteDeadline(time.Now().Add(d)); err != nil {
		return 0, err
	}
	for buf := make([]byte, bulkBytes); err == nil; {
		var n int
		n, err = c.Write(buf)
		total += int64(n)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	return total, c.SetWriteDeadline(time.Time{})
}

func closeWrite(c net.Conn) error {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("%T has no CloseWrite", c)
	}
	return half.CloseWrite()
}

func openTake(cl perf.Client) (*perf.Session, error) {
	return &perf.Session{
		Timed: true, Close: func() {},
		Run: func(_, n int, times []time.Duration) error {
			for i := range times {
				err := errNoWait
				for pause := takePause; errors.Is(err, errNoWait) && cl.Context.Err() == nil; pause *= 2 {
					times[i], err = takeOnce(cl, pause)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

// bystander asks a server of messages for serveBystander.
const bystander = perf.FirstOwn

// serveBystander makes this process run Go code on one processor only, and echoes over TCP
// at a port whose number it sends to the client, until the client ends its stream.
func serveBystander(c net.Conn) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer acceptAll(l, func(c net.Conn) { _ = echoes.Serve(c) })()
	if err := binary.Write(c, binary.LittleEndian, uint64(l.Addr().(*net.TCPAddr).Port)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, c)
	return err
}

// busyConns is how many busy connections there are beside the bystander.
const busyConns = 2

// keepBusy has messages of so many bytes echoed on connections all the time, until end closes
// the connections.
func keepBusy(conns []net.Conn, size int) (end func()) {
	var looping sync.WaitGroup
	for _, c := range conns {
		looping.Go(func() {
			buf, times := make([]byte, size), make([]time.Duration, 1000)
			for perf.Exchange(c, perf.Echo, buf, times) == nil {
			}
		})
	}
	return func() {
		for _, c := range conns {
			c.Close()
		}
		looping.Wait()
	}
}

// openBystander measures the bystander, a TCP connection, while the peer's connections are
// busy.
func openBystander(cl perf.Client) (*perf.Session, error) {
	cl.Conns = 1 + busyConns
	conns, closeAll, err := cl.DialAll()
	if err != nil {
		return nil, err
	}
	control := conns[0]
	tcp, err := dialBystander(control)
	if err != nil {
		closeAll()
		return nil, err
	}
	end := keepBusy(conns[1:], 64)
	buf := make([]byte, 64)
	return &perf.Session{
		Bytes: 2 * len(buf), Timed: true,
		Run: func(_, n int, times []time.Duration) error { return perf.Exchange(tcp, perf.Echo, buf, times) },
		Close: func() {
			tcp.Close()
			end()
			// The server has all its processors again when it answers with EOF.
			if closeWrite(control) == nil {
				_, _ = io.Copy(io.Discard, control)
			}
			control.Close()
		},
	}, nil
}

func dialBystander(control net.Conn) (net.Conn, error) {
	if err := perf.Request(control, bystander, 0, 1); err != nil {
		return nil, err
	}
	var port uint64
	if err := binary.Read(control, binary.LittleEndian, &port); err != nil {
		return nil, err
	}
	return net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}
