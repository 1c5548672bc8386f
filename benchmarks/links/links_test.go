package links

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/testing/rconntest"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/rconn"
)

var tables = flag.Bool("tables", false, "print whole tables, one of which is in docs/performance.md")

// link is a link with a bandwidth and a latency.
type link struct {
	name string
	sim.Link
}

func newLink(gigabits int64, oneWay time.Duration) link {
	return link{
		fmt.Sprintf("%d Gb/s, %v", gigabits, oneWay),
		sim.Link{Bandwidth: gigabits * 1e9 / 8, Latency: oneWay},
	}
}

var links = []link{
	newLink(100, 2*time.Microsecond),
	newLink(100, 10*time.Microsecond),
	newLink(100, 100*time.Microsecond),
	newLink(400, 2*time.Microsecond),
	newLink(400, 10*time.Microsecond),
	newLink(400, 100*time.Microsecond),
	newLink(10, 10*time.Millisecond),
}

// product is bandwidth times round trip, in bytes: as much is under way when the link is
// full.
func (l link) product() int {
	return int(float64(l.Bandwidth) * (2 * l.Latency).Seconds())
}

// connect makes n connections over the link. The end of the test closes them, and waits
// until they are gone.
func (l link) connect(t *testing.T, cfg *rconntest.Config, n int) (clients, servers []*rconn.Conn) {
	t.Helper()
	network := sim.New(l.Link)
	ctx := context.Background()
	listener, err := network.Listen(netip.MustParseAddrPort("10.0.0.1:0"), n)
	require.NoError(t, err)
	servers = make([]*rconn.Conn, n)
	clients = make([]*rconn.Conn, n)
	var all sync.WaitGroup
	errs := make([]error, 2*n)
	for i := range n {
		all.Go(func() {
			ep, err := listener.Accept()
			if err == nil {
				servers[i], err = rconntest.Server(ctx, "sim", ep, cfg)
			}
			errs[i] = err
		})
		all.Go(func() {
			ep, err := network.Dial(ctx, netip.AddrPort{}, listener.Addr())
			if err == nil {
				clients[i], err = rconntest.Client(ctx, "sim", ep, cfg)
			}
			errs[n+i] = err
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, listener.Close())
	t.Cleanup(func() {
		for _, c := range append(clients, servers...) {
			all.Go(func() { c.Close() })
		}
		all.Wait()
		time.Sleep(time.Minute)
		require.Zero(t, network.Open(), "endpoints left open")
		require.Zero(t, network.RNR(), "receiver not ready")
	})
	return clients, servers
}

// stream sends total bytes in Writes of the given size to a reader, which reads what has
// arrived. It measures the middle half, at the reader.
func (l link) stream(t *testing.T, cfg rconntest.Config, write, total int) (share float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clients, servers := l.connect(t, &cfg, 1)
		sent := make(chan error, 1)
		go func() { sent <- send(clients[0], write, total) }()
		require.NoError(t, receive(servers[0], total/4))
		start := time.Now()
		require.NoError(t, receive(servers[0], total/2))
		elapsed := time.Since(start)
		require.NoError(t, receive(servers[0], total-total/4-total/2))
		require.NoError(t, <-sent)
		share = float64(total/2) / elapsed.Seconds() / float64(l.Bandwidth)
	})
	return share
}

func send(w io.Writer, write, total int) error {
	p := make([]byte, write)
	for sent := 0; sent < total; sent += len(p) {
		if _, err := w.Write(p[:min(write, total-sent)]); err != nil {
			return err
		}
	}
	return nil
}

func receive(r io.Reader, total int) error {
	p := make([]byte, 64<<10)
	for got := 0; got < total; {
		n, err := r.Read(p[:min(len(p), total-got)])
		if err != nil {
			return err
		}
		got += n
	}
	return nil
}

// halfRoundTrip returns half the time of a ping-pong with messages of the given size.
func (l link) halfRoundTrip(t *testing.T, cfg rconntest.Config, size int) (half time.Duration) {
	t.Helper()
	const rounds = 20
	synctest.Test(t, func(t *testing.T) {
		clients, servers := l.connect(t, &cfg, 1)
		echoed := make(chan error, 1)
		go func() {
			var err error
			p := make([]byte, size)
			for i := 0; i < rounds && err == nil; i++ {
				if _, err = io.ReadFull(servers[0], p); err == nil {
					_, err = servers[0].Write(p)
				}
			}
			echoed <- err
		}()
		p := make([]byte, size)
		start := time.Now()
		for range rounds {
			_, err := clients[0].Write(p)
			require.NoError(t, err)
			_, err = io.ReadFull(clients[0], p)
			require.NoError(t, err)
		}
		half = time.Since(start) / (2 * rounds)
		require.NoError(t, <-echoed)
	})
	return half
}

// print prints a table for documents.
func printTable(title string, t report.Table) {
	if *tables {
		fmt.Printf("\n%s\n", title)
		t.Markdown(os.Stdout)
	}
}

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// buffers is a configuration with rings of the given size at both ends, and queues so long
// that nothing waits for them.
func buffers(n int) rconntest.Config {
	return rconntest.Config{RecvBuffer: n, SendBuffer: n, SendQueue: 4096, RecvQueue: 4096, KeepAlive: -1}
}

// enough returns how many bytes to send so that the start of the stream does not count.
func (l link) enough(ring int) int { return min(max(30*min(ring, l.product()), 4<<20), 512<<20) }

func TestThroughputByRing(t *testing.T) {
	rings := []int{64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}
	head := []string{"link, one way", "bandwidth × round trip"}
	for _, r := range rings {
		head = append(head, report.Size(r))
	}
	out := report.Table{head}
	for _, l := range links {
		row := []string{l.name, report.Size(l.product())}
		for _, r := range rings {
			if !*tables && r > 1<<20 {
				continue
			}
			share := l.stream(t, buffers(r), 1<<20, l.enough(r))
			row = append(row, percent(share))
			// No protocol has more under way than the ring holds.
			limit := min(1, float64(r)/float64(l.product()))
			require.LessOrEqual(t, share, 1.05*limit, "%s with %s", l.name, report.Size(r))
			if r >= 2*l.product() {
				require.Greater(t, share, 0.9, "%s with %s", l.name, report.Size(r))
			}
		}
		out.Row(row...)
	}
	printTable("Stream of 1 MiB Writes, share of the link by RecvBuffer = SendBuffer", out)
}

func TestThroughputByQueueDepth(t *testing.T) {
	depths := []int{16, 32, 64, 128, 256, 1024}
	head := []string{"link, one way", "Write"}
	for _, d := range depths {
		head = append(head, strconv.Itoa(d))
	}
	out := report.Table{head}
	for _, l := range links {
		for _, write := range []int{512, 64 << 10} {
			row := []string{l.name, report.Size(write)}
			for _, d := range depths {
				if !*tables && d > 32 {
					continue
				}
				cfg := buffers(64 << 20)
				cfg.SendQueue, cfg.RecvQueue = d, 2*d
				share := l.stream(t, cfg, write, l.enough(d*64<<10))
				row = append(row, percent(share))
				require.LessOrEqual(t, share, 1.05, l.name)
			}
			out.Row(row...)
		}
	}
	printTable("Rings of 64 MiB, share of the link by SendQueue (RecvQueue is twice that)", out)
}

func TestLatency(t *testing.T) {
	sizes := []int{64, 4 << 10, 64 << 10, 1 << 20}
	head := []string{"link, one way"}
	for _, s := range sizes {
		head = append(head, report.Size(s))
	}
	out := report.Table{head}
	for _, l := range links {
		row := []string{l.name}
		for _, s := range sizes {
			half := l.halfRoundTrip(t, rconntest.Config{KeepAlive: -1}, s)
			least := l.Latency + time.Duration(float64(s)/float64(l.Bandwidth)*1e9)
			require.GreaterOrEqual(t, half, least-time.Nanosecond)
			if s <= 64<<10 {
				require.Less(t, half, least+least/10+time.Microsecond, "%s, %d bytes", l.name, s)
			}
			row = append(row, fmt.Sprintf("%v (%.2f ×)", half.Round(10*time.Nanosecond), float64(half)/float64(least)))
		}
		out.Row(row...)
	}
	printTable("Half a round trip with the default Config, and its ratio to delay plus size over bandwidth", out)
}

// TestMessageOfSeveralWrites measures programs that write a header and then a body.
func TestMessageOfSeveralWrites(t *testing.T) {
	counts := []int{1, 2, 3, 8, 32}
	head := []string{"link, one way", "each Write"}
	for _, n := range counts {
		head = append(head, strconv.Itoa(n))
	}
	out := report.Table{head}
	for _, l := range links {
		for _, write := range []int{64, 1 << 10} {
			row := []string{l.name, report.Size(write)}
			for _, n := range counts {
				took := l.writesInARow(t, write, n)
				require.GreaterOrEqual(t, took, l.Latency)
				require.Less(t, took, 5*l.Latency, "%s, %d × %d bytes", l.name, n, write)
				row = append(row, fmt.Sprintf("%.2f ×", float64(took)/float64(l.Latency)))
			}
			out.Row(row...)
		}
	}
	printTable("From the first of several Writes in a row on an idle connection to the last byte read, in one-way delays, by the number of Writes", out)
}

func (l link) writesInARow(t *testing.T, write, n int) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clients, servers := l.connect(t, &rconntest.Config{KeepAlive: -1}, 1)
		time.Sleep(time.Second)
		start := time.Now()
		sent := make(chan error, 1)
		go func() { sent <- send(clients[0], write, n*write) }()
		require.NoError(t, receive(servers[0], n*write))
		took = time.Since(start)
		require.NoError(t, <-sent)
	})
	return took
}

func TestTenThousandConnections(t *testing.T) {
	n, each := 10000, 64<<10
	if !*tables {
		n = 500
	}
	l := newLink(400, 10*time.Microsecond)
	var first, last time.Duration
	synctest.Test(t, func(t *testing.T) {
		cfg := &rconntest.Config{RecvBuffer: 16 << 10, SendBuffer: 16 << 10, SendQueue: 16, RecvQueue: 16}
		clients, servers := l.connect(t, cfg, n)
		start := time.Now()
		done := make([]time.Duration, n)
		errs := make([]error, 2*n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { errs[i] = send(clients[i], 4<<10, each) })
			all.Go(func() {
				errs[n+i] = receive(servers[i], each)
				done[i] = time.Since(start)
			})
		}
		all.Wait()
		require.NoError(t, errors.Join(errs...))
		first, last = done[0], done[0]
		for _, d := range done {
			first, last = min(first, d), max(last, d)
		}
	})
	share := float64(n*each) / last.Seconds() / float64(l.Bandwidth)
	require.Greater(t, share, 0.8)
	if *tables {
		fmt.Printf("\n%d connections at once on %s, each with rings of 16 KiB and 64 KiB to send: %s of the link; the first is done after %v, the last after %v\n",
			n, l.name, percent(share), first, last)
	}
}

// TestTheFirstBytes is what it costs that memory begins small and grows: the first bytes of a connection with the
// default Config, against as many bytes when it has grown.
func TestTheFirstBytes(t *testing.T) {
	sizes := []int{256 << 10, 1 << 20, 4 << 20, 16 << 20}
	head := []string{"link, one way"}
	for _, n := range sizes {
		head = append(head, report.Size(n))
	}
	out := report.Table{head}
	for _, l := range links {
		row := []string{l.name}
		for _, n := range sizes {
			first, later := l.firstAndLater(t, n)
			row = append(row, fmt.Sprintf("%.1f ×", first.Seconds()/later.Seconds()))
			require.Less(t, first-later, 20*l.Latency, "%s, %s: memory has not grown in ten round trips", l.name, report.Size(n))
		}
		out.Row(row...)
	}
	printTable("The first bytes of a connection, times what as many take later", out)
}

// firstAndLater is how long n bytes take on a new connection, and when 64 MiB have gone over it.
func (l link) firstAndLater(t *testing.T, n int) (first, later time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clients, servers := l.connect(t, nil, 1)
		sent := make(chan error, 1)
		timed := func(n int) time.Duration {
			start := time.Now()
			go func() { sent <- send(clients[0], 64<<10, n) }()
			require.NoError(t, receive(servers[0], n))
			require.NoError(t, <-sent)
			return time.Since(start)
		}
		first = timed(n)
		timed(64 << 20)
		later = timed(n)
	})
	return first, later
}
