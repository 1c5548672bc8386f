package ringnet

import (
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// alone waits until no connection and no link of other tests is left.
func alone(t *testing.T) {
	t.Helper()
	hang.Unless(t, func() bool {
		runtime.GC() // closes connections that tests have dropped
		CloseIdleLinks()
		for _, n := range Totals() {
			if n.Opened != n.Closed {
				return false
			}
		}
		return Memory().Used == 0
	}, "links of other tests: %+v", Links())
}

// since returns what the process has counted for a network since before.
func since(before map[string]NetworkTotals, network string) NetworkTotals {
	a, more := before[network], Totals()[network]
	subtract(reflect.ValueOf(&more).Elem(), reflect.ValueOf(a))
	return more
}

// subtract takes the counters of a from those of a later b.
func subtract(b, a reflect.Value) {
	switch counted := b.Addr().Interface().(type) {
	case *uint64:
		*counted -= a.Uint()
	case *map[ReasonCode]uint64:
		*counted = added(a.Interface().(map[ReasonCode]uint64), *counted)
	default:
		for i := range b.NumField() {
			subtract(b.Field(i), a.Field(i))
		}
	}
}

func added(a, b map[ReasonCode]uint64) (more map[ReasonCode]uint64) {
	for code, n := range b {
		if n > a[code] {
			if more == nil {
				more = make(map[ReasonCode]uint64)
			}
			more[code] = n - a[code]
		}
	}
	return more
}

func TestTotalsCountWhatConnectionsHaveCarried(t *testing.T) {
	overEachLeg(t, func(t *testing.T, h host, carrier string) {
		alone(t)
		l := listenOn(t, h, ListenConfig{Trace: &Trace{}}) // which may be empty
		before := Totals()
		client, server := connect(t, h, l, &Dialer{Trace: &Trace{}})
		ask(t, client, server, 100_000)
		open := since(before, carrier)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
		closed := since(before, carrier)

		require.EqualValues(t, 1, open.Dialed)
		require.EqualValues(t, 1, open.Accepted)
		require.EqualValues(t, 2, open.Opened, "both ends are of this process")
		require.Zero(t, open.Closed)
		require.EqualValues(t, 200_000, open.BytesSent)
		require.EqualValues(t, 200_000, open.BytesReceived)
		require.EqualValues(t, 2, closed.Closed)
		require.EqualValues(t, 200_000, closed.BytesSent)
		require.EqualValues(t, 200_000, closed.BytesReceived)
		if carrier == "tcp" {
			require.Zero(t, open.LinksMade)
		} else {
			require.EqualValues(t, 2, open.LinksMade, "as both ends see it")
			require.Positive(t, open.MessagesSent)
		}

		require.NoError(t, l.Close())
		hang.Unless(t, func() bool {
			CloseIdleLinks()
			return len(Links()) == 0
		})
		gone := since(before, carrier)
		require.EqualValues(t, 200_000, gone.BytesSent, "the links are gone")
		require.EqualValues(t, 200_000, gone.BytesReceived)
		require.Empty(t, gone.LinksLost)
	})
}

func TestTotalsCountWhatAutoHasPassedOver(t *testing.T) {
	better(t, nil, nil)
	l := listenTCP(t, "127.0.0.1:0")
	before := Totals()
	dialAuto(t, Dialer{}, l.Addr().String())
	require.EqualValues(t, 1, since(before, "tcp").Dialed)
	for _, network := range []string{"shm", "rdma"} {
		require.Equal(t, map[ReasonCode]uint64{ReasonOther: 1}, since(before, network).PassedOver)
	}

	before = Totals()
	_, err := (&Dialer{Require: []string{"shm"}}).Dial("auto", l.Addr().String())
	require.Error(t, err)
	require.Equal(t, map[ReasonCode]uint64{ReasonOther: 1}, since(before, "shm").PassedOver)
	require.Equal(t, map[ReasonCode]uint64{ReasonSwitchedOff: 1}, since(before, "auto").DialsFailed)
}

func TestListenersCountConnectionsByTheNetworkThatCarriesThem(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	l := listenAuto(t, "127.0.0.1:0")
	require.Equal(t, map[string]ListenerStats{"tcp": {}, "shm": {}}, l.Stats())
	requireCarried(t, l, Dialer{}, "shm")
	require.Equal(t, map[string]ListenerStats{"tcp": {}, "shm": {Accepted: 1}}, l.Stats())

	dialTCP(t, nil, l.Addr().String())
	accept(t, l)
	require.Equal(t, map[string]ListenerStats{"tcp": {Accepted: 1, FellBack: 1}, "shm": {Accepted: 1}}, l.Stats())
	require.NoError(t, l.Close())
	require.EqualValues(t, 1, l.Stats()["shm"].Accepted, "after Close")
}

// A server that is out of memory counts the dialers that it refuses.
func TestListenersCountRefusalsForMemory(t *testing.T) {
	for name, linked := range map[string]bool{"a link": false, "a connection more on it": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, sim.New(sim.Link{}))
			l := host{"sim", "10.0.0.1"}.listen(t, ListenConfig{})
			memory := budget.New(func() budget.Limits { return budget.Limits{Registered: budget.Unlimited, Locked: budget.Unlimited} })
			l.listener.Setup.Budget = memory
			before := Totals()
			var d Dialer
			if linked {
				dial(t, &d, "sim", l.Addr().String())
			}
			used, _ := memory.State()
			memory.SetLimit(max(used.Registered, 1))
			refused := func() bool { return l.Stats().Failed[ReasonMemory] > 0 }
			_, err := d.DialContext(timeoutWhen(t, refused), "sim", l.Addr().String())
			require.Error(t, err)
			hang.Unless(t, refused) // the dialer may hear of it before it is counted
			failed := l.Stats().Failed
			require.Len(t, failed, 1)
			require.Positive(t, failed[ReasonMemory])
			require.Equal(t, failed, since(before, "sim").Failed)
		})
	}
}

func TestListenersCountDialersThatDoNotConfirm(t *testing.T) {
	n := sim.New(sim.Link{})
	simulate(t, n)
	l := host{"sim", "10.0.0.1"}.listen(t, ListenConfig{Config: &Config{HandshakeTimeout: 10 * time.Millisecond}})
	counted := func() bool { return l.Stats().Failed[ReasonSilent] == 1 }
	err := rawDial(t, n, l.Addr(), 0, func() error {
		hang.Unless(t, counted)
		return nil
	})
	require.Error(t, err)
}

// breakLink breaks the link of c, which must be the first connection on it.
func breakLink(n *sim.Network, c net.Conn) {
	n.Find(c.LocalAddr().(Addr).AddrPort(), c.RemoteAddr().(Addr).AddrPort()).Fail(errors.New("cable on fire"))
}

// counting is a connection that has Stats.
type counting interface {
	net.Conn
	Stats() Stats
}

// overEachLeg runs a test over each network, and over what auto has: a link, and TCP.
func overEachLeg(t *testing.T, test func(t *testing.T, h host, carrier string)) {
	overEachNetwork(t, func(t *testing.T, h host) { test(t, h, h.network) })
	t.Run("auto over shm", func(t *testing.T) {
		better(t, sim.New(sim.Link{}), nil)
		test(t, host{"auto", "127.0.0.1"}, "shm")
	})
	t.Run("auto over tcp", func(t *testing.T) {
		better(t, nil, nil)
		test(t, host{"auto", "127.0.0.1"}, "tcp")
	})
}

// connect dials l and accepts the connection.
func connect(t *testing.T, h host, l net.Listener, d *Dialer) (client, server counting) {
	t.Helper()
	client = dial(t, d, h.network, l.Addr().String()).(counting)
	return client, accept(t, l).(counting)
}

// listenOn listens until the end of the test.
func listenOn(t *testing.T, h host, lc ListenConfig) net.Listener {
	t.Helper()
	l := listen(t, lc, h.network, h.any())
	return l
}

// ask sends n bytes there and back.
func ask(t *testing.T, client, server net.Conn, n int) {
	t.Helper()
	p := make([]byte, n)
	for _, way := range []struct{ from, to net.Conn }{{client, server}, {server, client}} {
		sent := make(chan error, 1)
		go func() {
			_, err := way.from.Write(p)
			sent <- err
		}()
		_, err := io.ReadFull(way.to, make([]byte, n))
		require.NoError(t, err)
		require.NoError(t, <-sent)
	}
}

func TestStatsTellTheRoundTripOfTCP(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("TCP's round trip is known on Linux alone")
	}
	better(t, nil, nil)
	h := host{"auto", "127.0.0.1"}
	client, server := connect(t, h, listenOn(t, h, ListenConfig{}), &Dialer{})
	ask(t, client, server, 1)
	require.Positive(t, client.Stats().RTT)
	require.Less(t, client.Stats().RTT, time.Minute)
	require.NoError(t, client.Close())
	require.Positive(t, client.Stats().RTT, "what it was in the end")
}

func TestStatsCountReadsAndWritesThatWaited(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		client, server := connect(t, h, listenOn(t, h, ListenConfig{}), &Dialer{})
		write(t, client, "hello")
		require.Zero(t, client.Stats().WriteWaits, "there was room")

		_, err := io.ReadFull(server, make([]byte, 5))
		require.NoError(t, err)
		before := server.Stats().ReadWaits
		read := make(chan error, 1)
		go func() {
			_, err := server.Read(make([]byte, 1))
			read <- err
		}()
		hang.Unless(t, func() bool { return server.Stats().ReadWaits == before+1 })
		require.NoError(t, server.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-read, os.ErrDeadlineExceeded)
		require.Equal(t, before+1, server.Stats().ReadWaits)

		written := make(chan error, 1)
		go func() {
			_, err := client.Write(make([]byte, 8<<20)) // the server does not read
			written <- err
		}()
		hang.Unless(t, func() bool { return client.Stats().WriteWaits > 0 })
		require.NoError(t, client.SetWriteDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-written, os.ErrDeadlineExceeded)
	})
}

func TestStatsTellTheMemoryOfRings(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, h host) {
		client, server := connect(t, h, listenOn(t, h, ListenConfig{}), &Dialer{})
		first, _ := (&Config{}).RingMemory()
		require.Equal(t, first, client.Stats().Memory)
		require.NoError(t, server.Close())
		require.NoError(t, client.Close())
		hang.Unless(t, func() bool { return client.Stats().Memory == 0 })
	})
}
