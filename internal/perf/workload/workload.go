// Package workload has what ringnet perf and the benchmarks do over connections between two
// ends, how that is timed, and what it takes of the processors. Who uses it decides which
// networks there are and who dials, and connects client and server.
//
// messages.go has the protocol of the data connections, workload.go and requests.go the
// workloads, run.go a round of one, times.go how long its operations take, usage.go this process.
// Package report has the results.
package workload

import (
	"context"
	"io"
	"net"
	"time"
)

// A Workload is an operation that is repeated over connections.
type Workload struct {
	Key   string
	Name  string // for people
	Sized bool   // messages of several sizes
	Limit int    // operations of a cell in one round; 0 for no limit
	Count int    // operations of a connection in one round, however long they take; 0 for a slice
	Open  func(Client) (*Session, error)
}

// Client is the client's side of a cell.
type Client struct {
	Context context.Context
	Dial    func(context.Context) (net.Conn, error) // connects to a server that the workload can use
	Conns   int
	Size    int // of a message, in bytes
	Several int // operations between two looks at the clock, if they are short
}

// Session is a number of workers, one for each connection.
type Session struct {
	Bytes int  // payload of an operation, in both directions
	Half  bool // an operation's latency is half its time
	Timed bool // Run measures operations

	// Several is how many operations are measured together, if not each by itself.
	Several int

	// Failed, if not nil, returns how many operations have failed without ending the
	// round, and the error of one of them.
	Failed func() (int, error)

	// Run does n operations of a worker. If they are timed, it records the time of each, or of
	// one of each Several; otherwise times is nil. Run is called at once for several workers,
	// but not for one.
	Run func(worker, n int, times *Times) error

	// Close ends the connections. It may be called while workers run, which
	// then fail.
	Close func()
}

// PingPong and Stream need a MessageServer.
var (
	PingPong = Workload{Key: "ping-pong", Name: "ping-pong, half the round trip", Sized: true, Open: openPingPong}
	Stream   = Workload{Key: "stream", Name: "stream", Sized: true, Open: openStream}
)

// DialAll makes the connections of a session.
func (cl Client) DialAll() (conns []net.Conn, closeAll func(), err error) {
	return OpenAll(cl.Conns, func() (net.Conn, error) { return cl.Dial(cl.Context) })
}

// OpenAll opens n of something, one after the other: all, or none and an error.
func OpenAll[C io.Closer](n int, open func() (C, error)) (all []C, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range all {
			c.Close()
		}
	}
	for range n {
		c, err := open()
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		all = append(all, c)
	}
	return all, closeAll, nil
}

// open is a session in which each worker calls run with its connection, and with a buffer
// for a message of the client's size.
func (cl Client) open(run func(c net.Conn, buf []byte, n int, times *Times) error) (*Session, error) {
	conns, closeAll, err := cl.DialAll()
	if err != nil {
		return nil, err
	}
	bufs := make([][]byte, cl.Conns)
	for i := range bufs {
		bufs[i] = make([]byte, cl.Size)
	}
	return &Session{
		Bytes: cl.Size, Close: closeAll,
		Run: func(worker, n int, times *Times) error {
			return run(conns[worker], bufs[worker], n, times)
		},
	}, nil
}

// OpenExchange is a session in which each worker sends messages of the client's size
// and gets them back, echoed or worked on.
func (cl Client) OpenExchange(op int) (*Session, error) {
	s, err := cl.open(func(c net.Conn, buf []byte, n int, times *Times) error {
		return Exchange(c, op, buf, n, times)
	})
	if err != nil {
		return nil, err
	}
	s.Bytes, s.Timed = 2*cl.Size, true
	return s, nil
}

func openPingPong(cl Client) (*Session, error) {
	s, err := cl.OpenExchange(Echo)
	if err != nil {
		return nil, err
	}
	s.Half, s.Several = true, cl.Several
	return s, nil
}

// Each does n operations. If times is not nil, n is one of whole Several, and their times are recorded.
func Each(n int, times *Times, do func() error) error {
	several := n
	if times != nil {
		several = times.several
	}
	last := time.Now()
	for done := 0; done < n; done += several {
		for range several {
			if err := do(); err != nil {
				return err
			}
		}
		if times != nil {
			now := time.Now()
			times.Record(now.Sub(last) / time.Duration(several))
			last = now
		}
	}
	return nil
}

func openStream(cl Client) (*Session, error) {
	return cl.open(func(c net.Conn, buf []byte, n int, _ *Times) error {
		return stream(c, buf, n)
	})
}
