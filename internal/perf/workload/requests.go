package workload

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

const (
	workBytes = 1 << 10 // of a message
	httpBytes = 1 << 10 // of a reply

	// setUps is how many connections a round makes: TCP keeps the port of each for a minute.
	setUps = 400
)

// On, Connect and Burst need a MessageServer, HTTP a server with HTTPHandler.
var (
	On      = Workload{Key: "work", Name: "1 KiB there and back, 10 µs of work on each side", Open: openWork}
	Connect = Workload{Key: "connect", Name: "dial, one byte there and back, close", Limit: setUps, Open: openConnect}
	Burst   = Workload{Key: "burst", Name: "dials at once, one byte there and back on each", Count: 1, Open: openBurst}
	HTTP    = Workload{Key: "http", Name: "net/http keep-alive GET of 1 KiB", Open: openHTTP}
)

func openWork(cl Client) (*Session, error) {
	cl.Size = workBytes
	return cl.OpenExchange(Work)
}

func openConnect(cl Client) (*Session, error) {
	return &Session{
		Timed: true, Close: func() {},
		Run: func(_, n int, times *Times) error { return Each(n, times, cl.ConnectOnce) },
	}, nil
}

// ConnectOnce connects, sends one byte, waits for its echo, and closes the connection.
func (cl Client) ConnectOnce() error {
	c, err := cl.dialUse()
	if err != nil {
		return err
	}
	return c.Close()
}

// dialUse connects, sends one byte, and waits for its echo.
func (cl Client) dialUse() (net.Conn, error) {
	c, err := cl.Dial(cl.Context)
	if err != nil {
		return nil, err
	}
	if err := Exchange(c, Echo, make([]byte, 1), 1, nil); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openBurst keeps the connections until the end, as clients of a server do that has been
// restarted.
func openBurst(cl Client) (*Session, error) {
	conns, errs := make([]net.Conn, cl.Conns), make([]error, cl.Conns)
	return &Session{
		Timed: true,
		Run: func(worker, n int, times *Times) error {
			return Each(n, times, func() error {
				conns[worker], errs[worker] = cl.dialUse()
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

var httpBody = make([]byte, httpBytes)

// HTTPHandler replies to GETs.
func HTTPHandler(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(httpBody)
}

func openHTTP(cl Client) (*Session, error) {
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
	return &Session{
		Bytes: httpBytes, Timed: true, Close: transport.CloseIdleConnections,
		Run: func(_, n int, times *Times) error { return Each(n, times, get) },
	}, nil
}
