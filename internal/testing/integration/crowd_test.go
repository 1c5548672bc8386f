//go:build linux

package integration_test

import (
	"context"
	"encoding/json"
	"net"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// crowdSize is how many connections are on one link.
const crowdSize = 100

// spoken is how many bytes arrive before a connection ends, and can be read then.
const spoken = 1000

// place is a network and an address of this host.
type place struct{ network, host string }

func (at place) any() string { return net.JoinHostPort(at.host, "0") }

// betweenProcesses runs a test of two processes over shared memory and over RDMA, each time
// in a process of its own.
func betweenProcesses(t *testing.T, test func(t *testing.T, at place)) {
	t.Run("shm", func(t *testing.T) {
		alone(t, nil, func(t *testing.T) { test(t, place{"shm", "127.0.0.1"}) })
	})
	t.Run("rdma", func(t *testing.T) {
		at := place{"rdma", rdmaAddr(t)}
		alone(t, nil, func(t *testing.T) { test(t, at) })
	})
}

// crowd is the connections on one link to another process, an echoer.
type crowd struct {
	network, address string
	peer             *process
	conns            []*ringnet.Conn
}

func startCrowd(t *testing.T, at place) *crowd {
	t.Helper()
	p := start(t, "echoer", at.network, at.any())
	return &crowd{network: at.network, address: p.hear(), peer: p}
}

// dial dials the connections. Their link stays for so long when it has none any more.
func (cr *crowd) dial(t *testing.T, linkIdle time.Duration) {
	t.Helper()
	cr.conns = nil
	d := ringnet.Dialer{Config: &ringnet.Config{LinkIdle: linkIdle, Links: 1}}
	for range crowdSize {
		c, err := d.Dial(cr.network, cr.address)
		require.NoError(t, err)
		cr.conns = append(cr.conns, c.(*ringnet.Conn))
	}
	cr.requireEchoes(t)
}

// requireEchoes requires that what is sent on each connection comes back.
func (cr *crowd) requireEchoes(t *testing.T) {
	t.Helper()
	var all []func() error
	for _, c := range cr.conns {
		all = append(all, func() error { return echoed(c, 1000) })
	}
	atOnce(t, all...)
}

func (cr *crowd) close(t *testing.T) {
	t.Helper()
	for _, c := range cr.conns {
		require.NoError(t, c.Close())
	}
}

// report is what a process has in use.
type report struct {
	Links, Connections int
	ResidentKiB        int // memory that is not the device's
	Held               use
}

func reported() report {
	debug.FreeOSMemory()
	r := report{ResidentKiB: status("RssAnon")}
	r.Held, _ = held()
	for _, l := range ringnet.Links() {
		r.Links++
		r.Connections += l.Connections
	}
	return r
}

// report returns what the other process has in use.
func (cr *crowd) report(t *testing.T) (r report) {
	t.Helper()
	cr.peer.say("report")
	require.NoError(t, json.Unmarshal([]byte(cr.peer.hear()), &r))
	return r
}

// echoer is a process that sends back what arrives, on connections to the address of the
// network, and does what it is told.
func echoer(args []string) error {
	l, err := (&ringnet.ListenConfig{Config: &ringnet.Config{LinkIdle: time.Hour}}).Listen(context.Background(), args[0], args[1])
	if err != nil {
		return err
	}
	say(l.Addr().String())
	go echoAll(l)
	for {
		switch hear() {
		case "": // the test has ended
			return nil
		case "close idle links":
			ringnet.CloseIdleLinks()
			say("done")
		case "stop listening":
			if err := l.Close(); err != nil {
				return err
			}
			say("done")
		case "report":
			b, err := json.Marshal(reported())
			if err != nil {
				return err
			}
			say(string(b))
		}
	}
}
