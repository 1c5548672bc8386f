package ringnet

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// doc.go says about servers whose clients' hosts have lost power: closing their connections
// takes the linger time for each link, one after the other. Goroutines of net/http wait for
// a mutex meanwhile, so this test cannot run in virtual time.
func TestHTTPServerWaitsForEachLinkOfAHostThatIsGone(t *testing.T) {
	const links, linger = 3, 50 * time.Millisecond
	for name, end := range map[string]func(*http.Server) error{
		"Close": (*http.Server).Close,
		"Shutdown, whatever its context says": func(s *http.Server) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			return s.Shutdown(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := sim.New(sim.Link{})
			simulate(t, n)
			cfg := *small
			cfg.Linger, cfg.Dedicated = linger, true
			l := host{"sim", "10.0.0.4"}.listen(t, ListenConfig{Config: &cfg})
			idle := make(chan struct{}, links)
			server := &http.Server{
				Handler: http.NotFoundHandler(),
				ConnState: func(c net.Conn, state http.ConnState) {
					if state == http.StateIdle {
						c.(*idling).idle.Store(true)
					}
				},
			}
			served := make(chan error, 1)
			go func() { served <- server.Serve(idlingListener{l, idle}) }()
			for range links {
				leaveIdle(t, &Dialer{Config: &cfg}, l.Addr())
				<-idle
			}

			n.Cut(true)
			defer n.Cut(false) // or the links wait for the host, and other tests for their memory
			start := time.Now()
			require.NoError(t, end(server), "neither tells what was not delivered")
			require.GreaterOrEqual(t, time.Since(start), links*linger)
			require.ErrorIs(t, <-served, http.ErrServerClosed)
		})
	}
}

// idlingListener tells when a server reads the next request of a connection. Before that
// the connection's goroutine may notice the shutdown, and close the connection while others
// are closed.
type idlingListener struct {
	net.Listener
	waiting chan<- struct{}
}

func (l idlingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &idling{Conn: c, waiting: l.waiting}, nil
}

type idling struct {
	net.Conn
	idle    atomic.Bool
	waiting chan<- struct{}
}

func (c *idling) Read(b []byte) (int, error) {
	if c.idle.Swap(false) {
		c.waiting <- struct{}{}
	}
	return c.Conn.Read(b)
}

// leaveIdle has an HTTP server answer a request, and keeps the connection open.
func leaveIdle(t *testing.T, d *Dialer, server net.Addr) {
	t.Helper()
	c, err := d.Dial("sim", server.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Write([]byte("GET / HTTP/1.1\r\nHost: server\r\n\r\n"))
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}
