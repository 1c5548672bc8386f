package rconn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/rconntest"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/rconn"
)

// venue is a fabric over which the suite runs, and an address to listen at.
type venue struct {
	fabric.Fabric
	addr netip.Addr
	slow bool // an emulated device: tests do less

	virtual bool // time is virtual
}

// overEachFabric runs a test over every fabric that this machine has. Over sim it runs in
// virtual time, once on an instant link and once on one with a latency whose completions
// come in odd orders. There a test in which every goroutine waits fails at once, and so
// does a test that leaves anything open.
func overEachFabric(t *testing.T, test func(t *testing.T, v venue)) {
	inVirtualTime(t, sim.Link{}, func(t *testing.T, v simVenue) { test(t, v.venue) })
	inVirtualTime(t, far, func(t *testing.T, v simVenue) { test(t, v.venue) })
	t.Run("shm", func(t *testing.T) { test(t, shmVenue(t)) })
	t.Run("verbs", func(t *testing.T) { test(t, verbsVenue(t)) })
}

// overEachFabricInRealTime is for tests that cannot run in virtual time: those with
// subtests, and those whose calls wait for a mutex while time has to pass.
func overEachFabricInRealTime(t *testing.T, test func(t *testing.T, v venue)) {
	polled := sim.Link{Spin: 100}
	for _, by := range []struct {
		name string
		link sim.Link
		over func(fabric.Fabric) fabric.Fabric
	}{
		{"sim", sim.Link{}, func(f fabric.Fabric) fabric.Fabric { return f }},
		{"sim polled", polled, func(f fabric.Fabric) fabric.Fabric { return f }},
		{"sim slow", polled, slow},
	} {
		t.Run(by.name, func(t *testing.T) {
			n := sim.New(by.link)
			test(t, venue{Fabric: by.over(n), addr: simAddr})
			require.Zero(t, n.RNR(), "receiver not ready")
		})
	}
	t.Run("shm", func(t *testing.T) { test(t, shmVenue(t)) })
	t.Run("verbs", func(t *testing.T) { test(t, verbsVenue(t)) })
}

// shmVenue is shared memory within this process.
func shmVenue(t testing.TB) venue {
	t.Helper()
	f, err := shm.Fabric()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return venue{Fabric: f, addr: netip.MustParseAddr("127.0.0.1")}
}

// verbsVenue is the RDMA device at the address in SOFTROCE_ADDR. With
// RINGNET_REQUIRE_RDMA=1 there must be one.
func verbsVenue(t testing.TB) venue {
	t.Helper()
	unless := func(ok bool, why string, args ...any) {
		if !ok && os.Getenv("RINGNET_REQUIRE_RDMA") == "1" {
			t.Fatalf(why, args...)
		} else if !ok {
			t.Skipf(why, args...)
		}
	}
	env := os.Getenv("SOFTROCE_ADDR")
	unless(env != "", "no RDMA device: SOFTROCE_ADDR is not set; bin/softroce sets it")
	addr, err := netip.ParseAddr(env)
	require.NoError(t, err, "SOFTROCE_ADDR")
	f, err := verbs.Fabric()
	unless(!errors.Is(err, errors.ErrUnsupported), "%v", err)
	require.NoError(t, err)
	return venue{Fabric: f, addr: addr, slow: true}
}

// times returns n, or less where that would take long.
func (v venue) times(n int) int {
	if v.slow || testing.Short() {
		return max(n/10, 1)
	}
	return n
}

// any returns an address with a free port.
func (v venue) any() netip.AddrPort { return netip.AddrPortFrom(v.addr, 0) }

// parked returns, where that can be known, when the calls in the background wait.
func (v venue) parked() {
	if v.virtual {
		synctest.Wait()
	}
}

var (
	simAddr = netip.MustParseAddr("10.0.0.1")

	// far is a link on which each message takes time, and sends and receives complete in
	// odd orders.
	far = sim.Link{Latency: 200 * time.Microsecond, Bandwidth: 1 << 30, Jitter: time.Millisecond, Seed: 1}
)

// simVenue is a simulated network, for what no other fabric can do.
type simVenue struct {
	venue
	*sim.Network
}

// inVirtualTime runs a test on a simulated network in virtual time. Each message must find
// a posted receive, and nothing may be left open at the end, when closed connections have
// had their time.
func inVirtualTime(t *testing.T, l sim.Link, test func(t *testing.T, v simVenue)) {
	t.Helper()
	name := "sim"
	if l.Latency > 0 {
		name = "sim far"
	}
	// A subtest, so that -run /verbs leaves it out.
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := sim.New(l)
			// Runs last, after the connections have been closed.
			t.Cleanup(func() {
				time.Sleep(time.Minute)
				assert.Zero(t, n.Open(), "endpoints or listeners left open")
			})
			test(t, simVenue{venue{Fabric: n, addr: simAddr, virtual: true}, n})
			assert.Zero(t, n.RNR(), "receiver not ready")
		})
	})
}

// endpoint returns the endpoint of c.
func (v simVenue) endpoint(c *rconn.Conn) *sim.Endpoint {
	return v.Find(c.LocalAddr().(rconn.Addr).AddrPort(), c.RemoteAddr().(rconn.Addr).AddrPort())
}

// connect makes a connection: its dialing end and its listening end.
func (v venue) connect(t testing.TB, dialer, listener *rconntest.Config) (client, server *rconn.Conn) {
	t.Helper()
	l, err := v.Listen(v.any(), 8)
	require.NoError(t, err)
	defer l.Close()
	client, server, err = v.connectTo(l, dialer, listener)
	require.NoError(t, err)
	t.Cleanup(func() {
		client.SetLinger(0)
		client.Close()
		server.SetLinger(0)
		server.Close()
	})
	return client, server
}

func (v venue) connectTo(l fabric.Listener, dialer, listener *rconntest.Config) (client, server *rconn.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), hang.After)
	defer cancel()
	type result struct {
		c   *rconn.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		ep, err := l.Accept()
		if err != nil {
			accepted <- result{nil, err}
			return
		}
		c, err := rconntest.Server(ctx, "rdma", ep, listener)
		accepted <- result{c, err}
	}()
	ep, err := v.Dial(ctx, netip.AddrPort{}, l.Addr())
	if err == nil {
		client, err = rconntest.Client(ctx, "rdma", ep, dialer)
	}
	if err != nil {
		l.Close()
		<-accepted
		return nil, nil, err
	}
	r := <-accepted
	return client, r.c, r.err
}

// pipe returns what nettest.TestConn asks for.
func (v venue) pipe(t testing.TB) func() (c1, c2 net.Conn, stop func(), err error) {
	l, err := v.Listen(v.any(), 8)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return func() (c1, c2 net.Conn, stop func(), err error) {
		client, server, err := v.connectTo(l, nil, nil)
		if err != nil {
			return nil, nil, nil, err
		}
		return client, server, func() { client.Close(); server.Close() }, nil
	}
}

// pattern is an endless stream of bytes, in which each place can be recognised.
type pattern uint64

func (p pattern) at(i int) byte { return byte((uint64(i) + uint64(p)) * 0x9e37_79b9_7f4a_7c15 >> 56) }

func (p pattern) fill(b []byte, from int) {
	for i := range b {
		b[i] = p.at(from + i)
	}
}

// check returns an error that tells where b differs from the pattern at from.
func (p pattern) check(b []byte, from int) error {
	for i, got := range b {
		if want := p.at(from + i); got != want {
			return fmt.Errorf("byte %d is %#x, want %#x", from+i, got, want)
		}
	}
	return nil
}

// send writes n bytes of the pattern from the given position on, in Writes of random sizes
// up to most.
func (p pattern) send(c net.Conn, from, n, most int, r *rand.Rand) error {
	b := make([]byte, most)
	for end := from + n; from < end; {
		b := b[:min(1+r.IntN(most), end-from)]
		p.fill(b, from)
		n, err := c.Write(b)
		from += n
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", from, err)
		}
		clear(b) // Write no longer needs the bytes
	}
	return nil
}

// receive reads the pattern from the given position on, in Reads of random sizes up to
// most, and returns how many bytes came before the error.
func (p pattern) receive(c net.Conn, from, most int, r *rand.Rand) (int, error) {
	b := make([]byte, most)
	for total := 0; ; {
		n, err := c.Read(b[:1+r.IntN(most)])
		if wrong := p.check(b[:n], from+total); wrong != nil {
			return total, wrong
		}
		total += n
		if err != nil {
			return total, err
		}
	}
}

// transfer sends n bytes from one end to the other, in Writes and Reads of up to most, and ends them:
// they arrive, and then io.EOF.
func (p pattern) transfer(t testing.TB, from, to net.Conn, n, most int, end func() error) {
	t.Helper()
	atOnce(t, func() error {
		if err := p.send(from, 0, n, most, random(t, uint64(p))); err != nil {
			return err
		}
		return end()
	}, func() error {
		if got, err := p.receive(to, 0, most, random(t, ^uint64(p))); got != n || err != io.EOF {
			return fmt.Errorf("received %d of %d bytes, then %v", got, n, err)
		}
		return nil
	})
}

// receiveExactly reads n bytes of the pattern.
func (p pattern) receiveExactly(c net.Conn, from, n int) error {
	b := make([]byte, n)
	if got, err := io.ReadFull(c, b); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", got, n, err)
	}
	return p.check(b, from)
}

// write writes a text.
func write(t testing.TB, c io.Writer, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
}

// atOnce runs the functions at once, and fails the test for each that returns an error.
func atOnce(t testing.TB, fs ...func() error) {
	t.Helper()
	errs := make([]error, len(fs))
	var all sync.WaitGroup
	for i, f := range fs {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// started runs f in the background, and returns a channel of its result.
func started[T any](f func() T) <-chan T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	return done
}

// random returns a source of numbers. If the test fails, it prints the seed that repeats
// them.
func random(t testing.TB, seed uint64) *rand.Rand {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// hooked is a fabric with a hook at calls of its endpoints. The hook gets the call, of an endpoint
// that was dialed or accepted, and makes it or not.
type hooked struct {
	fabric.Fabric
	hook func(dialed bool, name string, call func() error) error
}

// slow returns a fabric whose PostSend takes a while, as soft-RoCE's does, in real time.
func slow(f fabric.Fabric) fabric.Fabric {
	return &hooked{f, func(_ bool, name string, call func() error) error {
		err := call()
		for start := time.Now(); name == "PostSend" && time.Since(start) < 20*time.Microsecond; {
		}
		return err
	}}
}

func (f *hooked) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Dial(ctx, local, remote)
	return hookedEndpoint{ep, f, true}, err
}

func (f *hooked) Listen(local netip.AddrPort, backlog int) (fabric.Listener, error) {
	l, err := f.Fabric.Listen(local, backlog)
	return hookedListener{l, f}, err
}

type hookedListener struct {
	fabric.Listener
	f *hooked
}

func (l hookedListener) Accept() (fabric.Endpoint, error) {
	ep, err := l.Listener.Accept()
	return hookedEndpoint{ep, l.f, false}, err
}

type hookedEndpoint struct {
	fabric.Endpoint
	f      *hooked
	dialed bool
}

func (e hookedEndpoint) PostRecv(n int) error {
	return e.f.hook(e.dialed, "PostRecv", func() error { return e.Endpoint.PostRecv(n) })
}

func (e hookedEndpoint) PostSend(wr []fabric.WorkRequest) error {
	return e.f.hook(e.dialed, "PostSend", func() error { return e.Endpoint.PostSend(wr) })
}

func (e hookedEndpoint) Poll(c []fabric.Completion) (n int, err error) {
	err = e.f.hook(e.dialed, "Poll", func() (err error) { n, err = e.Endpoint.Poll(c); return err })
	return n, err
}

func (e hookedEndpoint) Arm() error { return e.f.hook(e.dialed, "Arm", e.Endpoint.Arm) }

func (e hookedEndpoint) Disconnect() error {
	return e.f.hook(e.dialed, "Disconnect", e.Endpoint.Disconnect)
}
