package proxy

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// stubborn is a connection whose Close blocks until the test ends.
type stubborn struct {
	endpoint.Conn
	closing chan<- struct{}
	ended   <-chan struct{}
}

func (c stubborn) Close() error {
	c.closing <- struct{}{}
	<-c.ended
	return errors.New("the test has ended")
}

// stubbornTo has the first connection that p dials be a stubborn one. It returns what is sent to whenever
// that is closed.
func stubbornTo(t *testing.T, p *Proxy) <-chan struct{} {
	t.Helper()
	closing, ended := make(chan struct{}, 100), make(chan struct{})
	t.Cleanup(func() { close(ended) })
	first := make(chan struct{}, 1)
	first <- struct{}{}
	dial := p.dial
	p.dial = func(ctx context.Context) (endpoint.Conn, []ringnet.Reason, error) {
		c, _, err := dial(ctx)
		if err == nil {
			select {
			case <-first:
				return stubborn{c, closing, ended}, nil, nil
			default:
			}
		}
		return c, nil, err
	}
	return closing
}

// Whoever's Close blocks holds up its own connection alone, and the end of the proxy for a bounded time.
func TestAConnectionWhoseCloseBlocksHoldsUpNoOther(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go serveEach(server, echo)
	to := endpoint.Endpoint{Network: "tcp", Address: server.Addr().String()}

	t.Run("idle", func(t *testing.T) {
		l := listenUnix(t)
		p := lenient(t, Forwarding{To: to, Idle: 20 * time.Millisecond}, l)
		p.endTime = time.Millisecond
		closing := stubbornTo(t, p)
		begin(t, p)
		requireEnded(t, dialUnix(t, l.Addr()))
		<-closing
		returns(t, "now", func() { require.Equal(t, 1, p.now()) })
		requireEnded(t, dialUnix(t, l.Addr())) // idle, too
		over, cancel := context.WithCancel(t.Context())
		cancel()
		returns(t, "Drain", func() { require.ErrorContains(t, p.Drain(over, 0), "1 connections were cut off") })
		require.LessOrEqual(t, len(closing), 2, "the two halves wait for it besides, and no more")
	})
	t.Run("dialed too late", func(t *testing.T) {
		l := listenUnix(t)
		p := lenient(t, Forwarding{To: to}, l)
		p.endTime = time.Millisecond
		closing := stubbornTo(t, p)
		dial, dialing := p.dial, make(chan struct{})
		p.dial = func(ctx context.Context) (endpoint.Conn, []ringnet.Reason, error) {
			close(dialing)
			<-ctx.Done()
			return dial(context.WithoutCancel(ctx))
		}
		begin(t, p)
		client := dialUnix(t, l.Addr())
		<-dialing
		returns(t, "Close", p.Close)
		<-closing
		returns(t, "now", func() { p.now() })
		requireEnded(t, client)
	})
}

// A peer can make a write to its socket long.
func TestAWriteThatIsSlowHoldsUpNoOtherConnection(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go serveEach(server, echo)
	l := listenUnix(t)
	p := lenient(t, Forwarding{To: endpoint.Endpoint{Network: "tcp", Address: server.Addr().String()}, Idle: time.Hour}, l)
	begin(t, p)
	echoes(t, dialUnix(t, l.Addr()))
	var c *connection
	p.mu.Lock()
	for c = range p.connections {
	}
	p.mu.Unlock()
	s := c.client.carrier.(*socket)
	s.mu.Lock() // as during a write
	c.server.writing.Lock()
	defer c.server.writing.Unlock()
	defer s.mu.Unlock()
	returns(t, "lostBy", func() { require.NoError(t, c.lostBy()) })
}
