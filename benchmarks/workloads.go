package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// workload is something done over connections, over and over.
type workload struct {
	key      string
	name     string
	protocol string // what the server speaks
	sized    bool   // messages of several sizes
	conns    []int  // numbers of connections on one host, unless -conns says otherwise
	onDevice []int  // and on an RDMA device
	many     []int  // further ones on one host, with messages of bulkBytes only
	limit    int    // operations of a cell in one round; 0 for no limit
	count    int    // operations of a connection in one round, however long they take; 0 for a slice
	alone    bool   // with one connection only
	open     func(cl client) (*session, error)
}

// client is the client's side of a cell.
type client struct {
	ctx     context.Context
	dial    func(context.Context, string) (net.Conn, error)
	address string
	conns   int
	size    int
}

// session is a number of workers, one for each connection.
type session struct {
	bytes int  // payload of an operation, in both directions
	half  bool // an operation's latency is half its time
	timed bool // run measures each operation

	// failed, if not nil, is how many operations failed without ending the
	// round, and the error of one.
	failed func() (int, error)

	// run has a worker do n operations. If they are timed, times has room for
	// n; otherwise it is nil.
	run   func(worker, n int, times []time.Duration) error
	close func()
}

const (
	httpBytes = 1 << 10
	workBytes = 1 << 10
	bulkBytes = 64 << 10
)

// setups is how many connections are made in a round: TCP keeps the ports of
// each for a minute.
const setups = 400

var workloads = []*workload{
	{key: "ping-pong", name: "ping-pong, half the round trip", protocol: "messages", sized: true,
		conns: []int{1, 16}, onDevice: []int{1, 16}, open: openPingPong},
	{key: "stream", name: "stream", protocol: "messages", sized: true,
		conns: []int{1, 16}, onDevice: []int{1, 16}, many: []int{64}, open: openStream},
	{key: "work", name: "1 KiB there and back, 10 µs of work on each side", protocol: "messages",
		conns: []int{1, 4, 16, 64, 256}, onDevice: []int{1, 16}, open: openWork},
	{key: "connect", name: "dial, one byte there and back, close", protocol: "messages", limit: setups,
		conns: []int{1, 16}, onDevice: []int{1, 16}, open: openConnect},
	{key: "http", name: "net/http keep-alive GET of 1 KiB", protocol: "http",
		conns: []int{1, 4, 16, 64}, onDevice: []int{1, 16}, open: openHTTP},
	{key: "grpc", name: "gRPC unary call, 1 KiB each way", protocol: "grpc",
		conns: []int{1, 4, 16}, onDevice: []int{1, 16}, open: openGRPC},
	{key: "grpc-stream", name: "gRPC server stream of 64 KiB messages", protocol: "grpc", alone: true,
		conns: []int{1}, onDevice: []int{1}, open: openGRPCStream},
	{key: "burst", name: "dials at once, one byte there and back on each", protocol: "messages", count: 1,
		conns: []int{5000}, onDevice: []int{500}, open: openBurst},
	{key: "take", name: "a Write to a full ring, from when its reader took that and began to compute for 20 ms", protocol: "take",
		conns: []int{1}, alone: true, count: 10, open: openTake},
	{key: "bystander", name: "TCP ping-pong with a process of GOMAXPROCS=1 beside two busy connections", protocol: "messages",
		conns: []int{1}, alone: true, open: openBystander},
}

func findWorkload(key string) (*workload, error) {
	i := slices.IndexFunc(workloads, func(w *workload) bool { return w.key == key })
	if i < 0 {
		return nil, fmt.Errorf("no workload is called %q", key)
	}
	return workloads[i], nil
}

// dialAll makes the connections of a session.
func (cl client) dialAll() (conns []net.Conn, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for range cl.conns {
		c, err := cl.dial(cl.ctx, cl.address)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, c)
	}
	return conns, closeAll, nil
}

func (cl client) buffers() [][]byte {
	b := make([][]byte, cl.conns)
	for i := range b {
		b[i] = make([]byte, cl.size)
	}
	return b
}

func openPingPong(cl client) (*session, error) {
	conns, closeAll, err := cl.dialAll()
	if err != nil {
		return nil, err
	}
	bufs := cl.buffers()
	return &session{
		bytes: 2 * cl.size, half: true, timed: true, close: closeAll,
		run: func(worker, n int, times []time.Duration) error {
			return pingPong(conns[worker], echo, bufs[worker], times)
		},
	}, nil
}

func openWork(cl client) (*session, error) {
	cl.size = workBytes
	conns, closeAll, err := cl.dialAll()
	if err != nil {
		return nil, err
	}
	bufs := cl.buffers()
	return &session{
		bytes: 2 * workBytes, timed: true, close: closeAll,
		run: func(worker, n int, times []time.Duration) error {
			return pingPong(conns[worker], work, bufs[worker], times)
		},
	}, nil
}

func openStream(cl client) (*session, error) {
	conns, closeAll, err := cl.dialAll()
	if err != nil {
		return nil, err
	}
	bufs := cl.buffers()
	return &session{
		bytes: cl.size, close: closeAll,
		run: func(worker, n int, _ []time.Duration) error {
			return stream(conns[worker], bufs[worker], n)
		},
	}, nil
}

func openConnect(cl client) (*session, error) {
	return &session{
		timed: true, close: func() {},
		run: func(_, n int, times []time.Duration) error {
			return timeEach(times, func() error { return connectOnce(cl) })
		},
	}, nil
}

func connectOnce(cl client) error {
	c, err := cl.dialUse()
	if err != nil {
		return err
	}
	return c.Close()
}

// dialUse connects and has one byte echoed.
func (cl client) dialUse() (net.Conn, error) {
	c, err := cl.dial(cl.ctx, cl.address)
	if err != nil {
		return nil, err
	}
	if err := pingPong(c, echo, make([]byte, 1), make([]time.Duration, 1)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openBurst keeps the connections until the end, as clients of a server do that
// has just come back.
func openBurst(cl client) (*session, error) {
	conns, errs := make([]net.Conn, cl.conns), make([]error, cl.conns)
	return &session{
		timed: true,
		run: func(worker, n int, times []time.Duration) error {
			return timeEach(times, func() error {
				conns[worker], errs[worker] = cl.dialUse()
				return nil
			})
		},
		failed: func() (n int, one error) {
			for _, err := range errs {
				if err != nil {
					n, one = n+1, err
				}
			}
			return n, one
		},
		close: func() {
			for _, c := range conns {
				if c != nil {
					c.Close()
				}
			}
		},
	}, nil
}

func timeEach(times []time.Duration, do func() error) error {
	for i := range times {
		start := time.Now()
		if err := do(); err != nil {
			return err
		}
		times[i] = time.Since(start)
	}
	return nil
}

func openHTTP(cl client) (*session, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return cl.dial(ctx, cl.address) },
		// One connection for each worker, and kept.
		MaxConnsPerHost:     cl.conns,
		MaxIdleConnsPerHost: cl.conns,
	}
	get := func() error {
		req, err := http.NewRequestWithContext(cl.ctx, http.MethodGet, "http://benchmark/", nil)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != httpBytes {
			return fmt.Errorf("GET: %d bytes, %w", n, err)
		}
		return nil
	}
	return &session{
		bytes: httpBytes, timed: true, close: transport.CloseIdleConnections,
		run: func(_, _ int, times []time.Duration) error { return timeEach(times, get) },
	}, nil
}

// openClients makes a gRPC client for each worker.
func (cl client) openClients() (clients []*grpc.ClientConn, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range clients {
			c.Close()
		}
	}
	for range cl.conns {
		c, err := newGRPCClient(cl.address, cl.dial)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		clients = append(clients, c)
	}
	return clients, closeAll, nil
}

func openGRPC(cl client) (*session, error) {
	clients, closeAll, err := cl.openClients()
	if err != nil {
		return nil, err
	}
	in := wrapperspb.Bytes(make([]byte, unaryBytes))
	return &session{
		bytes: 2 * unaryBytes, timed: true, close: closeAll,
		run: func(worker, _ int, times []time.Duration) error {
			return timeEach(times, func() error { return callUnary(cl.ctx, clients[worker], in) })
		},
	}, nil
}

func openGRPCStream(cl client) (*session, error) {
	clients, closeAll, err := cl.openClients()
	if err != nil {
		return nil, err
	}
	return &session{
		bytes: streamBytes, close: closeAll,
		run: func(worker, n int, _ []time.Duration) error {
			return receiveStream(cl.ctx, clients[worker], n)
		},
	}, nil
}
