//go:build linux

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/hang"
)

// crowdSize is how many connections are on the link to the other process.
const crowdSize = 100

// place is a network and an address of this host.
type place struct {
	network, host string
	linkIdle      time.Duration
}

func (at place) any() string { return net.JoinHostPort(at.host, "0") }

// config returns a configuration that notices soon that a peer does not answer.
func (at place) config() *ringnet.Config {
	return &ringnet.Config{KeepAlive: keepAlive, LinkIdle: at.linkIdle, Links: 1} // one, whatever the number of processors
}

// partner starts a process that listens or dials at the same place.
func (at place) partner(t *testing.T, address, does string) *process {
	t.Helper()
	return start(t, "partner", at.network, at.linkIdle.String(), address, does)
}

// partnersPlace returns the place from the arguments of such a process.
func partnersPlace(args []string) (at place, address, does string) {
	idle, _ := time.ParseDuration(args[1])
	return place{network: args[0], linkIdle: idle}, args[2], args[3]
}

// betweenProcesses runs a test of two processes over shared memory and over RDMA, each time
// in a process of its own.
func betweenProcesses(t *testing.T, test func(t *testing.T, at place)) {
	t.Run("shm", func(t *testing.T) {
		alone(t, nil, func(t *testing.T) { test(t, place{network: "shm", host: "127.0.0.1"}) })
	})
	t.Run("rdma", func(t *testing.T) {
		at := place{network: "rdma", host: rdmaAddr(t)}
		alone(t, nil, func(t *testing.T) { test(t, at) })
	})
}

// crowd is the connections on one link to another process.
type crowd struct {
	peer    *process
	address string // of the listening process
	members []*member
}

// member is this end of a connection. Its part is what the other end does.
type member struct {
	*ringnet.Conn
	part string
}

// gather makes a crowd whose members have the parts in turn. This process dials, or the
// other one does.
func gather(t *testing.T, at place, dialed bool, parts ...string) *crowd {
	t.Helper()
	var cr *crowd
	if dialed {
		cr = startListening(t, at, at.any())
	} else {
		cr = startDialing(t, at)
	}
	cr.play(t, parts...)
	require.Len(t, ringnet.Links(), 1)
	return cr
}

// play gives each member its part.
func (cr *crowd) play(t *testing.T, parts ...string) {
	t.Helper()
	for i, m := range cr.members {
		m.part = parts[i%len(parts)]
		_, err := fmt.Fprintln(m, m.part)
		require.NoError(t, err)
	}
}

func startListening(t *testing.T, at place, address string) *crowd {
	t.Helper()
	p := at.partner(t, address, "listens")
	cr := &crowd{peer: p, address: p.hear()}
	cr.dialAll(t, at)
	return cr
}

// dialAll dials the connections to a process that listens.
func (cr *crowd) dialAll(t *testing.T, at place) {
	t.Helper()
	cr.members = nil
	for range crowdSize {
		c, err := (&ringnet.Dialer{Config: at.config()}).Dial(at.network, cr.address)
		require.NoError(t, err)
		cr.members = append(cr.members, &member{Conn: c.(*ringnet.Conn)})
	}
}

func startDialing(t *testing.T, at place) *crowd {
	t.Helper()
	l, err := (&ringnet.ListenConfig{Config: at.config()}).Listen(t.Context(), at.network, at.any())
	require.NoError(t, err)
	defer l.Close()
	cr := &crowd{address: l.Addr().String()}
	cr.peer = at.partner(t, cr.address, "dials")
	for range crowdSize {
		c, err := l.Accept()
		require.NoError(t, err)
		cr.members = append(cr.members, &member{Conn: c.(*ringnet.Conn)})
	}
	return cr
}

// partner is the process of the other ends.
func partner(args []string) error {
	at, address, does := partnersPlace(args)
	var l net.Listener
	var err error
	if does == "dials" {
		for range crowdSize {
			c, err := (&ringnet.Dialer{Config: at.config()}).Dial(at.network, address)
			if err != nil {
				return err
			}
			go play(c.(*ringnet.Conn))
		}
	} else {
		l, err = (&ringnet.ListenConfig{Config: at.config()}).Listen(context.Background(), at.network, address)
		if err != nil {
			return err
		}
		say(l.Addr().String())
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go play(c.(*ringnet.Conn))
			}
		}()
	}
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
			say(string(b))
			if err != nil {
				return err
			}
		}
	}
}

// report is what a process has in use.
type report struct {
	Links, Connections int
	Held               use
}

func reported() report {
	runtime.GC()
	r := report{}
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

// spoken is how many bytes a member's peer sends whose part is to send a few.
const spoken = 1000

// play plays the part that the first line on a connection names.
func play(c *ringnet.Conn) {
	kept.Store(c, true)
	var part string
	if _, err := fmt.Fscanln(c, &part); err != nil {
		return
	}
	switch part {
	case "speak":
		_ = (&stream{}).send(c, spoken, spoken)
	case "send":
		_ = (&stream{}).send(c, endless, 50_000)
	case "receive":
		_, _ = io.Copy(io.Discard, c)
	case "echo":
		_, _ = io.Copy(c, c)
		_ = c.Close()
	case "deaf":
	}
}

// kept has connections that nothing else refers to. They would be closed when they are
// collected.
var kept sync.Map

// endure uses a connection until it is lost, which must be for the given reason. Bytes that
// arrive must be those that the peer has sent, and all that have arrived must be readable,
// before the loss or after it.
func (m *member) endure(lost <-chan struct{}, reason error) error {
	in, out := &stream{}, &stream{}
	switch m.part {
	case "speak":
		<-lost
		return errors.Join(want(in.receive(m, endless), reason), m.allRead(in.pos, spoken))
	case "send":
		return errors.Join(want(in.receive(m, endless), reason), m.allRead(in.pos, 0))
	case "receive":
		return want(out.send(m, endless, 50_000), reason)
	}
	written := make(chan error, 1)
	go func() { written <- out.send(m, endless, 50_000) }()
	_, err := m.Read(make([]byte, 1))
	return errors.Join(want(err, reason), want(<-written, reason))
}

// allRead returns whether all that has arrived has been read, and was enough.
func (m *member) allRead(n, least int) error {
	if arrived := int(m.Stats().BytesReceived); n != arrived || n < least {
		return fmt.Errorf("read %d bytes of %d that have arrived, of %d at least", n, arrived, least)
	}
	return nil
}

// requireLost has all members use their connections while something happens. It requires
// that all are lost for the given reason, and that closing them then does not wait for each.
func (cr *crowd) requireLost(t *testing.T, reason error, happens func()) {
	t.Helper()
	for _, m := range cr.members {
		if m.part == "speak" {
			require.True(t, eventually(func() bool { return m.Stats().BytesReceived == spoken }))
		}
	}
	lost := make(chan struct{})
	errs := make(chan error, len(cr.members))
	for i, m := range cr.members {
		go func() {
			err := m.endure(lost, reason)
			if err != nil {
				err = fmt.Errorf("connection %d, %s: %w", i, m.part, err)
			}
			errs <- err
		}()
	}
	happens()
	close(lost)
	limit := time.After(hang.After)
	for range cr.members {
		select {
		case err := <-errs:
			require.NoError(t, err)
		case <-limit:
			t.Fatalf("a connection is not lost after %v", hang.After)
		}
	}
	for _, m := range cr.members {
		_, err := m.Write([]byte("x"))
		require.ErrorIs(t, err, reason)
	}
	start := time.Now()
	for _, m := range cr.members {
		require.NoError(t, m.Close(), "the connection is lost already")
	}
	require.Less(t, time.Since(start), hang.After, "closing all")
}

// requireEchoes requires that what each member sends comes back.
func (cr *crowd) requireEchoes(t *testing.T, n int) {
	t.Helper()
	var all []func() error
	for i, m := range cr.members {
		all = append(all, func() error { return (&stream{seed: uint64(i)}).send(m, n, 5_000) },
			func() error { return (&stream{seed: uint64(i)}).receive(m, n) })
	}
	atOnce(t, all...)
}

// requireNothingHeld requires that this process has no more in use than before, when links
// have had the time to close.
func requireNothingHeld(t *testing.T, before use) {
	t.Helper()
	if !eventually(func() bool {
		ringnet.CloseIdleLinks()
		return len(ringnet.Links()) == 0 && inUse(t).atMost(before)
	}) {
		require.Empty(t, ringnet.Links())
		require.Equal(t, before, inUse(t), "in use before and after")
	}
}

// warm has this process make what it makes only once, and returns what is in use then.
func warm(t *testing.T, at place) use {
	t.Helper()
	cr := gather(t, at, true, "echo")
	cr.requireEchoes(t, 1000)
	cr.close(t)
	ringnet.CloseIdleLinks()
	require.True(t, eventually(func() bool { return len(ringnet.Links()) == 0 }))
	time.Sleep(time.Second) // until the background has closed what is left
	return inUse(t)
}

// close closes all connections and ends the other process.
func (cr *crowd) close(t *testing.T) {
	t.Helper()
	for _, m := range cr.members {
		require.NoError(t, m.Close())
	}
	cr.peer.kill()
}

func TestPeerOfAHundredConnectionsIsKilled(t *testing.T) {
	betweenProcesses(t, func(t *testing.T, at place) {
		before := warm(t, at)
		for _, dialed := range []bool{true, false} {
			t.Logf("dialed by this process: %v", dialed)
			cr := gather(t, at, dialed, "speak", "speak", "speak", "send", "receive", "deaf")
			cr.requireLost(t, syscall.ECONNRESET, cr.peer.kill)
			if dialed {
				_, err := ringnet.Dial(at.network, cr.address)
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
				again := startListening(t, at, cr.address)
				require.Len(t, ringnet.Links(), 1)
				again.close(t)
			}
			requireNothingHeld(t, before)
		}
	})
}

// A process that is stopped does nothing, but its kernel and its device go on: no
// connection is lost, however long that takes and whatever is under way.
func TestPeerOfAHundredConnectionsIsStopped(t *testing.T) {
	betweenProcesses(t, func(t *testing.T, at place) {
		before := warm(t, at)
		cr := gather(t, at, true, "echo")
		cr.requireEchoes(t, 1000)
		cr.peer.stop()
		time.Sleep(idleDeadAfter + time.Second)
		cr.peer.goOn()
		cr.requireEchoes(t, 1000)

		var all sync.WaitGroup
		all.Go(func() { cr.requireEchoes(t, times(100_000, 5_000_000)) })
		require.True(t, eventually(func() bool { return cr.members[0].Stats().BytesReceived > 10_000 }))
		cr.peer.stop()
		time.Sleep(2 * time.Second)
		cr.peer.goOn()
		all.Wait()
		cr.close(t)
		requireNothingHeld(t, before)
	})
}

// A process that does not wait until its peer continues gets errors that name the cause,
// and does not wait once for each connection.
func TestPeerOfAHundredConnectionsIsStoppedForGood(t *testing.T) {
	betweenProcesses(t, func(t *testing.T, at place) {
		const linger = 2 // for each of the connections it would be longer than any hang
		before := warm(t, at)
		cr := gather(t, at, true, "deaf")
		cr.peer.stop()
		passed := time.Now().Add(time.Second)
		var all []func() error
		for _, m := range cr.members[:crowdSize/2] {
			require.NoError(t, m.SetDeadline(passed))
			all = append(all, func() error {
				_, write := m.Write(make([]byte, 4<<20))
				_, read := m.Read(make([]byte, 1))
				return errors.Join(want(write, os.ErrDeadlineExceeded), want(read, os.ErrDeadlineExceeded))
			})
		}
		atOnce(t, append(all, func() error {
			_, err := (&ringnet.Dialer{Config: at.config(), Deadline: passed}).Dial(at.network, cr.address)
			return want(err, os.ErrDeadlineExceeded)
		})...)
		start := time.Now()
		for _, m := range cr.members {
			require.NoError(t, m.SetLinger(linger))
			if err := m.Close(); err != nil {
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
			}
		}
		require.Less(t, time.Since(start), hang.After)
		cr.peer.kill()
		requireNothingHeld(t, before)
	})
}
