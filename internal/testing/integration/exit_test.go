//go:build linux

package integration_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// What the peer of a process that ends reads: docs/migrate.md has the reasons.

// written is how many bytes the process writes.
const written = 300_000

func TestEndOfAProcess(t *testing.T) {
	besideTCP(t, func(t *testing.T, at place) {
		for _, test := range []struct {
			name, does string // see acceptLeaver
			ended      error  // the end of the stream over ringnet; nil stands for io.EOF, which it is over TCP
			wrap       func(c net.Conn) net.Conn
		}{
			// Over ringnet the peer cannot know that it has all.
			{name: "exits without Close, when its peer has read all", does: "waits", ended: syscall.ECONNRESET},
			// What it has not sent is lost, where TCP's kernel would send it. What was cut short does not look whole.
			{name: "exits without Close, right after Write", ended: syscall.ECONNRESET},
			{name: "exits after Close", does: "closes"},
			// Who wants TCP's end, because messages say themselves how long they are, has it by a wrapper.
			{name: "exits without Close, and its peer has a wrapper", does: "waits", wrap: func(c net.Conn) net.Conn { return resetAsEOF{c} }},
		} {
			t.Run(test.name, func(t *testing.T) {
				c, p := acceptLeaver(t, at, test.does)
				want, s := test.ended, &stream{}
				if at.network == "tcp" {
					want = nil
				}
				if test.wrap != nil {
					c = test.wrap(c)
				}
				if test.does == "waits" {
					require.NoError(t, s.receive(c, written))
					p.say("exit")
				}
				err := s.drain(c)
				require.True(t, errors.Is(err, want), "%v, want %v", err, want)
				if err == nil {
					require.Equal(t, written, s.pos)
				}
				p.wait()
			})
		}
	})
}

// The process is killed at any moment, also while Close is under way: its peer reads all and
// io.EOF, or fewer bytes and an error. Over TCP it may read fewer bytes and io.EOF.
func TestKilledProcessNeverEndsAStreamThatIsCutShort(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, at place) {
		r := rand.New(rand.NewPCG(1, 1))
		for range times(4, 100) {
			c, p := acceptLeaver(t, at, "closes")
			s := &stream{}
			require.NoError(t, s.receive(c, written-1-r.IntN(written)))
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				p.kill()
			}()
			err := s.drain(c)
			<-killed
			if err == nil {
				require.Equal(t, written, s.pos, "io.EOF")
			} else {
				require.ErrorIs(t, err, syscall.ECONNRESET)
			}
		}
	})
}

// The process is stopped, gets bytes that nobody reads, and is killed before any call has noticed. TCP's
// Close says nothing of that.
func TestCloseSaysWhatAKilledProcessHasNotRead(t *testing.T) {
	besideTCP(t, func(t *testing.T, at place) {
		c, p := acceptLeaver(t, at, "waits")
		require.NoError(t, (&stream{}).receive(c, written))
		p.stop()
		_, err := c.Write(make([]byte, 8<<10))
		require.NoError(t, err)
		p.kill()
		if at.network == "tcp" {
			require.NoError(t, c.Close())
			return
		}
		require.NoError(t, c.(interface{ AwaitRead() error }).AwaitRead()) // the news has come
		require.ErrorIs(t, c.Close(), syscall.ECONNRESET)
	})
}

// besideTCP runs a test of two processes over each network, and over TCP beside them.
func besideTCP(t *testing.T, test func(t *testing.T, at place)) {
	t.Run("tcp", func(t *testing.T) { test(t, place{"tcp", "127.0.0.1"}) })
	overEachCarrier(t, test)
}

func overEachCarrier(t *testing.T, test func(t *testing.T, at place)) {
	for _, network := range []string{"shm", "auto"} {
		t.Run(network, func(t *testing.T) { test(t, place{network, "127.0.0.1"}) })
	}
	t.Run("rdma", func(t *testing.T) { test(t, place{"rdma", rdmaAddr(t)}) })
}

// acceptLeaver starts a process that writes, and accepts its connection. Then it exits; or it
// closes the connection before, waits for a line, or never ends, as does says. No probe and no timeout
// ends the connection, but the news of the process's kernel alone.
func acceptLeaver(t *testing.T, at place, does string) (net.Conn, *process) {
	t.Helper()
	var l net.Listener
	var err error
	if at.network == "tcp" {
		l, err = net.Listen(at.network, at.any())
	} else {
		lc := ringnet.ListenConfig{Config: &ringnet.Config{KeepAlive: time.Hour, ResumeTimeout: time.Hour}}
		l, err = lc.Listen(t.Context(), at.network, at.any())
	}
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	p := start(t, "leaver", at.network, l.Addr().String(), does)
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, p
}

// leaver is the process of acceptLeaver.
func leaver(args []string) error {
	dial := net.Dial
	switch args[0] {
	case "auto":
		dial = (&ringnet.Dialer{Require: []string{"shm"}}).Dial // or TCP may win where processors are busy
	case "shm", "rdma":
		dial = ringnet.Dial
	}
	c, err := dial(args[0], args[1])
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(c) // a Conn that is garbage is closed
	n := written
	if args[2] == "never ends" {
		go io.Copy(io.Discard, c)
		n = endless
	}
	if err := (&stream{}).send(c, n, 10_000); err != nil {
		return err
	}
	switch args[2] {
	case "closes":
		return c.Close()
	case "waits":
		hear()
	}
	return nil
}

// resetAsEOF is a connection whose reader takes the end of the peer's process for the end of the
// stream, as over TCP.
type resetAsEOF struct{ net.Conn }

func (c resetAsEOF) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF
	}
	return n, err
}

func TestPeerKilledDuringATransferResetsBothDirections(t *testing.T) {
	overEachCarrier(t, func(t *testing.T, at place) {
		for range times(3, 50) {
			c, p := acceptLeaver(t, at, "never ends")
			sent := make(chan error, 1)
			go func() { sent <- (&stream{}).send(c, endless, 10_000) }()
			s := &stream{}
			require.NoError(t, s.receive(c, 1<<20))
			p.kill()
			require.ErrorIs(t, s.drain(c), syscall.ECONNRESET)
			require.ErrorIs(t, <-sent, syscall.ECONNRESET)
		}
	})
}

// endless is more bytes than can be sent before the peer is killed.
const endless = 1 << 30
