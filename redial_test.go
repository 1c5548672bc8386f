package ringnet

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/internal/wire"
)

// small is a configuration that takes so little memory that many connections fit anywhere.
var small = &Config{RecvBuffer: 4096, SendBuffer: 4096, SendQueue: 16, RecvQueue: 4}

// impatient is a configuration whose connections end as soon as their queue pair does.
var impatient = &Config{ResumeTimeout: -1}

// No dialer is told that the backlog is full while the listener accepts.
func TestDialFiveHundredAtOnce(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		l := h.listen(t, ListenConfig{Config: small, Backlog: 16})
		var serving, dialing sync.WaitGroup
		serving.Go(func() { echoAll(l) })
		d := Dialer{Config: small, Timeout: 5 * time.Minute}
		for range 500 {
			dialing.Go(func() { assert.NoError(t, echo(&d, h.network, l.Addr().String())) })
		}
		dialing.Wait()
		require.NoError(t, l.Close())
		serving.Wait()
	})
}

// echo dials, sends a message and reads it back.
func echo(d *Dialer, network, address string) error {
	c, err := d.Dial(network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	const message = "anybody there?"
	if _, err := io.WriteString(c, message); err != nil {
		return err
	}
	b := make([]byte, len(message))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != message {
		return fmt.Errorf("%q came back: %w", b, err)
	}
	return nil
}

// inVirtualTime runs a test on a simulated network, and then waits until closed connections
// are gone.
func inVirtualTime(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		simulate(t, sim.New(sim.Link{Latency: time.Millisecond}))
		test(t)
	})
}

func TestDialOfAFullBacklogHasAnEnd(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		l := host{"sim", "10.0.0.1"}.listen(t, ListenConfig{Backlog: 1})
		addr := l.Addr().String()
		dial(t, &Dialer{}, "sim", addr)

		start := time.Now()
		_, err := Dial("sim", addr)
		requireOpError(t, err, "dial", "sim", addr, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, "backlog is full")
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.InDelta(t, 30*time.Second, time.Since(start), float64(2*fabric.LongestPause))

		start = time.Now()
		_, err = DialTimeout("sim", addr, time.Minute)
		requireOpError(t, err, "dial", "sim", addr, os.ErrDeadlineExceeded)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, "i/o timeout: connection refused by the peer: the listener's backlog is full")
		require.True(t, err.(net.Error).Timeout())
		require.Equal(t, time.Minute, time.Since(start))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		start = time.Now()
		_, err = new(Dialer).DialContext(ctx, "sim", addr)
		requireOpError(t, err, "dial", "sim", addr, context.Canceled)
		require.False(t, err.(net.Error).Timeout())
		require.False(t, err.(temporary).Temporary(), "as package net has it")
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

// simulateRefusing makes the network "refusing", which answers the first requests with the
// given errors, and counts all requests.
func simulateRefusing(t *testing.T, answers ...error) (asked *atomic.Int32) {
	n := sim.New(sim.Link{})
	simulate(t, n)
	asked = new(atomic.Int32)
	f := &hooked{Fabric: n, connect: func(connect func() ([]byte, error)) ([]byte, error) {
		if i := int(asked.Add(1)); i <= len(answers) {
			return nil, answers[i-1]
		}
		return connect()
	}}
	addNetwork(t, "refusing", namedNetwork{&transport.Network{Name: "refusing", Open: opens(f)}, "ip"})
	return asked
}

// A request is stale if the peer's connection manager still has a connection of the same queue
// pair. Whatever else is refused is refused for good.
func TestDialRepeatsARequestRefusedAsStale(t *testing.T) {
	stale := &fabric.RejectError{Reason: fabric.RejectStale}
	asked := simulateRefusing(t, stale, stale, stale)
	l := host{"refusing", "10.0.0.1"}.listen(t, ListenConfig{})
	dial(t, &Dialer{}, "refusing", l.Addr().String())
	require.EqualValues(t, 4, asked.Load())

	for _, answer := range []*fabric.RejectError{
		{Reason: fabric.RejectNoListener},
		{Reason: fabric.RejectConsumer},
		{Reason: fabric.RejectConsumer, Private: wire.Reject{Reason: "not on a Sunday"}.Append(nil)},
		{Reason: 5},
	} {
		asked := simulateRefusing(t, answer)
		_, err := Dial("refusing", "10.0.0.1:80")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.EqualValues(t, 1, asked.Load(), "%v", answer)
	}
}

// Dialers that give up, at whatever stage, keep no place in the backlog.
func TestDialsGivenUpAtAnyMomentLeaveRoomInTheBacklog(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		l := h.listen(t, ListenConfig{Config: small, Backlog: 4})
		acceptAll(t, l)
		var dialing sync.WaitGroup
		for i := range 16 {
			d := Dialer{Config: small}
			if i%2 == 0 {
				d.Config = smallDedicated
			}
			dialing.Go(func() {
				for range 20 {
					d.Timeout = 1 + rand.N(5*time.Millisecond)
					if c, err := d.Dial(h.network, l.Addr().String()); err == nil {
						transport.Reset(c.(*Conn))
					}
				}
			})
		}
		dialing.Wait()
		hang.Unless(t, func() bool { return l.listener.Taken() == 0 })
	})
}

func port(t *testing.T, l net.Listener) string {
	t.Helper()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

func TestAutoTakesTCPWhenTheBacklogsOfBetterNetworksAreFull(t *testing.T) {
	shm, rdma := sim.New(sim.Link{}), sim.New(sim.Link{})
	better(t, shm, rdma)
	l := listen(t, ListenConfig{Backlog: 1}, "auto", "127.0.0.1:0")
	for _, network := range []string{"shm", "rdma"} {
		dial(t, &Dialer{}, network, l.Addr().String())
	}
	delayTCP(t, fourTimesAsLong/4) // time for shm to refuse
	for _, d := range []Dialer{{}, {Timeout: fourTimesAsLong}} {
		c := dial(t, &d, "auto", l.Addr().String())
		require.Equal(t, "tcp", carrierOf(c))
		requireReasons(t, c.(*AutoConn), "shm: connection refused by the peer: the listener's backlog is full", "rdma: TCP was connected first")
		delayTCP(t, time.Hour) // in the next round a part of the timeout is less
	}
	for range 4 {
		accept(t, l)
	}
	requireCarried(t, l, Dialer{}, "shm") // that there was no room is not remembered
}

// simulateCrowd makes the network "crowd", whose requests have a limit as those
// of rdma have, and where the hosts from 10.0.0.5 on are silent. It counts the requests under way.
func simulateCrowd(t *testing.T) (now *atomic.Int32) {
	n := sim.New(sim.Link{})
	for i := range byte(100) {
		n.Blackhole(netip.AddrFrom4([4]byte{10, 0, 0, 5 + i}))
	}
	now = new(atomic.Int32)
	f := &hooked{Fabric: n, connect: func(connect func() ([]byte, error)) ([]byte, error) {
		now.Add(1)
		defer now.Add(-1)
		return connect()
	}}
	addNetwork(t, "crowd", namedNetwork{&transport.Network{Name: "crowd", Open: opens(f), Requests: transport.NewRequests()}, "ip"})
	return now
}

// dialSilentHosts makes many dials to each of some silent hosts, which wait for an answer until
// cancel, or the end of the test: then so many requests are under way.
func dialSilentHosts(t *testing.T, now *atomic.Int32, first, hosts, most int) (cancel func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var dialing sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		dialing.Wait()
	})
	for host := range hosts {
		for range 32 {
			dialing.Go(func() {
				_, _ = (&Dialer{Config: smallDedicated}).DialContext(ctx, "crowd", fmt.Sprintf("10.0.0.%d:80", first+host))
			})
		}
	}
	hang.Unless(t, func() bool { return int(now.Load()) == most })
	return cancel
}

// smallDedicated has each dial make a request of its own.
var smallDedicated = func() *Config {
	c := *small
	c.Dedicated = true
	return &c
}()

func TestRequestsUnderWayAreAtMost64AndToOneHost16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a timeout ends only what waits
		now := simulateCrowd(t)
		t.Cleanup(func() {
			require.Zero(t, networks["crowd"].Requests.UnderWay(), "everybody has gone")
		})
		l := host{"crowd", "10.0.0.1"}.listen(t, ListenConfig{Config: small})
		dialSilentHosts(t, now, 5, 1, 16)
		_, err := (&Dialer{Config: smallDedicated, Timeout: time.Millisecond}).Dial("crowd", "10.0.0.5:80")
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorContains(t, err, "waited for 16 other requests to 10.0.0.5")
		c, err := (&Dialer{Config: smallDedicated, Timeout: time.Minute}).Dial("crowd", l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.EqualValues(t, 16, now.Load())

		// A dial that finds no place waits for one until its timeout.
		cancel := dialSilentHosts(t, now, 6, 8, 64)
		_, err = (&Dialer{Config: smallDedicated, Timeout: time.Millisecond}).Dial("crowd", l.Addr().String())
		requireOpError(t, err, "dial", "crowd", l.Addr().String(), os.ErrDeadlineExceeded)
		require.ErrorContains(t, err, "i/o timeout: waited for 64 other requests of this process")
		require.EqualValues(t, 64, now.Load())
		waiting := make(chan error, 1)
		go func() {
			c, err := (&Dialer{Config: smallDedicated}).Dial("crowd", l.Addr().String())
			if err == nil {
				err = c.Close()
			}
			waiting <- err
		}()
		cancel()
		require.NoError(t, <-waiting)
	})
}
