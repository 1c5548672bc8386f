package links

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/rconntest"
	"github.com/ringnet/ringnet/rconn"
)

// counter counts the calls each of which is a cgo crossing over verbs.
type counter struct {
	fabric.Endpoint
	send, recv, poll, arm int
}

func (c *counter) PostSend(wr []fabric.WorkRequest) error {
	c.send++
	return c.Endpoint.PostSend(wr)
}

func (c *counter) PostRecv(n int) error {
	c.recv++
	return c.Endpoint.PostRecv(n)
}

func (c *counter) Poll(completions []fabric.Completion) (int, error) {
	c.poll++
	return c.Endpoint.Poll(completions)
}

func (c *counter) Arm() error {
	c.arm++
	return c.Endpoint.Arm()
}

func (c *counter) reset() { *c = counter{Endpoint: c.Endpoint} }

// countedPair is a connection whose ends count their calls. It is made within
// a bubble of synctest and closed at the end of the test.
func countedPair(t *testing.T, l sim.Link) (client, server *rconn.Conn, atClient, atServer *counter) {
	t.Helper()
	network := sim.New(l)
	ctx := context.Background()
	cfg := &rconn.Config{KeepAlive: -1}
	listener, err := network.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 1)
	require.NoError(t, err)
	accepted := make(chan error, 1)
	go func() {
		ep, err := listener.Accept()
		if err == nil {
			atServer = &counter{Endpoint: ep}
			server, err = rconntest.Server(ctx, "sim", atServer, cfg)
		}
		accepted <- err
	}()
	ep, err := network.Dial(ctx, netip.AddrPort{}, listener.Addr())
	require.NoError(t, err)
	atClient = &counter{Endpoint: ep}
	client, err = rconntest.Client(ctx, "sim", atClient, cfg)
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	require.NoError(t, listener.Close())
	t.Cleanup(func() {
		client.Close()
		server.Close()
		time.Sleep(time.Minute)
	})
	synctest.Wait()
	atClient.reset()
	atServer.reset()
	return client, server, atClient, atServer
}

func TestCrossings(t *testing.T) {
	out := newTable("pattern", "side", "post sends", "post receives", "poll", "arm", "all")
	report := func(pattern string, messages int, counters ...*counter) {
		for i, c := range counters {
			each := func(n int) string { return fmt.Sprintf("%.3g", float64(n)/float64(messages)) }
			out.row(pattern, []string{"writer", "reader"}[i], each(c.send), each(c.recv), each(c.poll), each(c.arm),
				each(c.send+c.recv+c.poll+c.arm))
		}
	}

	// All has arrived when Read is called: no call waits.
	synctest.Test(t, func(t *testing.T) {
		const messages = 4096
		client, server, atClient, atServer := countedPair(t, sim.Link{})
		p := make([]byte, 64)
		for range messages {
			_, err := client.Write(p)
			require.NoError(t, err)
			_, err = io.ReadFull(server, p)
			require.NoError(t, err)
		}
		synctest.Wait()
		report("Write, then Read, 64 B", messages, atClient, atServer)
	})
	for _, write := range []int{64, 4 << 10, 64 << 10} {
		synctest.Test(t, func(t *testing.T) {
			const total = 16 << 20
			client, server, atClient, atServer := countedPair(t, newLink(100, 2*time.Microsecond).Link)
			sent := make(chan error, 1)
			go func() { sent <- send(client, write, total) }()
			require.NoError(t, receive(server, total))
			require.NoError(t, <-sent)
			synctest.Wait()
			report("stream of "+size(write)+" Writes", total/write, atClient, atServer)
		})
	}
	if *tables {
		out.print("Crossings into C of a message, by side; nobody polls in vain in virtual time")
	}
}
