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

	"github.com/ringnet/ringnet/internal/perf"
)

// workload is a workload, with the numbers of connections that it is measured with.
type workload struct {
	perf.Workload
	protocol string  // what the server speaks
	conns    []int   // numbers of connections on one host, unless -conns has others
	onDevice []int   // the same on an RDMA device
	many     []int   // further numbers on one host, with messages of bulkBytes only
	busy     []point // what a busy host is compared by; nil for conns
	alone    bool    // with one connection only
}

const (
	httpBytes = 1 << 10
	workBytes = 1 << 10
	bulkBytes = 64 << 10
)

// setups is how many connections a round makes: TCP keeps the port of each for a
// minute.
const setups = 400

var workloads = []*workload{
	{Workload: perf.PingPong, protocol: "messages", conns: []int{1, 16}, onDevice: []int{1, 16},
		busy: []point{{1, workBytes}, {16, workBytes}, {64, workBytes}, {256, workBytes}}},
	{Workload: perf.Stream, protocol: "messages", conns: []int{1, 16}, onDevice: []int{1, 16}, many: []int{64},
		busy: []point{{1, bulkBytes}, {16, bulkBytes}, {64, bulkBytes}}},
	{Workload: perf.Workload{Key: "work", Name: "1 KiB there and back, 10 µs of work on each side", Open: openWork},
		protocol: "messages", conns: []int{1, 4, 16, 64, 256}, onDevice: []int{1, 16}},
	{Workload: perf.Workload{Key: "connect", Name: "dial, one byte there and back, close", Limit: setups, Open: openConnect},
		protocol: "messages", conns: []int{1, 16}, onDevice: []int{1, 16}},
	{Workload: perf.Workload{Key: "http", Name: "net/http keep-alive GET of 1 KiB", Open: openHTTP},
		protocol: "http", conns: []int{1, 4, 16, 64}, onDevice: []int{1, 16}},
	{Workload: perf.Workload{Key: "grpc", Name: "gRPC unary call, 1 KiB each way", Open: openGRPC},
		protocol: "grpc", conns: []int{1, 4, 16}, onDevice: []int{1, 16}},
	{Workload: perf.Workload{Key: "grpc-stream", Name: "gRPC server stream of 64 KiB messages", Open: openGRPCStream},
		protocol: "grpc", alone: true, conns: []int{1}, onDevice: []int{1}},
	{Workload: perf.Workload{Key: "burst", Name: "dials at once, one byte there and back on each", Count: 1, Open: openBurst},
		protocol: "messages", conns: []int{5000}, onDevice: []int{500}},
	{Workload: perf.Workload{Key: "take", Name: "a Write to a full ring, from when its reader took that and began to compute for 20 ms", Count: 10, Open: openTake},
		protocol: "take", alone: true, conns: []int{1}},
	{Workload: perf.Workload{Key: "bystander", Name: "TCP ping-pong with a process of GOMAXPROCS=1 beside two busy connections", Open: openBystander},
		protocol: "messages", alone: true, conns: []int{1}},
	{Workload: perf.Workload{Key: "compute", Name: "a goroutine of the client that computes beside 16 busy connections of 1 KiB", Open: openCompute},
		protocol: "messages", alone: true, conns: []int{1}},
}

func findWorkload(key string) (*workload, error) {
	i := slices.IndexFunc(workloads, func(w *workload) bool { return w.Key == key })
	if i < 0 {
		return nil, fmt.Errorf("no workload is called %q", key)
	}
	return workloads[i], nil
}

func openWork(cl perf.Client) (*perf.Session, error) {
	cl.Size = workBytes
	return cl.OpenExchange(perf.Work)
}

func openConnect(cl perf.Client) (*perf.Session, error) {
	return &perf.Session{
		Timed: true, Close: func() {},
		Run: func(_, n int, times []time.Duration) error {
			return timeEach(times, func() error { return connectOnce(cl) })
		},
	}, nil
}

func connectOnce(cl perf.Client) error {
	c, err := dialUse(cl)
	if err != nil {
		return err
	}
	return c.Close()
}

// dialUse connects, sends one byte, and waits for its echo.
func dialUse(cl perf.Client) (net.Conn, error) {
	c, err := cl.Dial(cl.Context)
	if err != nil {
		return nil, err
	}
	if err := perf.Exchange(c, perf.Echo, make([]byte, 1), make([]time.Duration, 1)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openBurst keeps the connections until the end, as clients of a server do that has been
// restarted.
func openBurst(cl perf.Client) (*perf.Session, error) {
	conns, errs := make([]net.Conn, cl.Conns), make([]error, cl.Conns)
	return &perf.Session{
		Timed: true,
		Run: func(worker, n int, times []time.Duration) error {
			return timeEach(times, func() error {
				conns[worker], errs[worker] = dialUse(cl)
				return nil
			})
		},
		Failed: func() (n int, one error) {
			for _, err := range errs {
				if err != nil {
					n, one = n+1, err
				}
			}
			return n, one
		},
		Close: func() {
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

func openHTTP(cl perf.Client) (*perf.Session, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return cl.Dial(ctx) },
		// One connection for each worker, and kept.
		MaxConnsPerHost:     cl.Conns,
		MaxIdleConnsPerHost: cl.Conns,
	}
	get := func() error {
		req, err := http.NewRequestWithContext(cl.Context, http.MethodGet, "http://benchmark/", nil)
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
	return &perf.Session{
		Bytes: httpBytes, Timed: true, Close: transport.CloseIdleConnections,
		Run: func(_, _ int, times []time.Duration) error { return timeEach(times, get) },
	}, nil
}

// openClients makes a gRPC client for each worker.
func openClients(cl perf.Client) (clients []*grpc.ClientConn, closeAll func(), err error) {
	return perf.OpenAll(cl.Conns, func() (*grpc.ClientConn, error) { return newGRPCClient(cl.Dial) })
}

func openGRPC(cl perf.Client) (*perf.Session, error) {
	clients, closeAll, err := openClients(cl)
	if err != nil {
		return nil, err
	}
	in := wrapperspb.Bytes(make([]byte, unaryBytes))
	return &perf.Session{
		Bytes: 2 * unaryBytes, Timed: true, Close: closeAll,
		Run: func(worker, _ int, times []time.Duration) error {
			return timeEach(times, func() error { return callUnary(cl.Context, clients[worker], in) })
		},
	}, nil
}

func openGRPCStream(cl perf.Client) (*perf.Session, error) {
	clients, closeAll, err := openClients(cl)
	if err != nil {
		return nil, err
	}
	return &perf.Session{
		Bytes: streamBytes, Close: closeAll,
		Run: func(worker, n int, _ []time.Duration) error {
			return receiveStream(cl.Context, clients[worker], n)
		},
	}, nil
}
