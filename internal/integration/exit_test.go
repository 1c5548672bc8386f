//go:build linux

package integration_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/hang"
)

// What the peer of a process that ends reads: docs/migrate.md has the reasons.

// written is how many bytes the process writes.
const written = 300_000

// A process that exits without Close, when its peer has read all that it has written, ends the
// stream over TCP. Over ringnet the peer cannot know that it has all.
func TestExitWithoutCloseIsAReset(t *testing.T) {
	besideTCP(t, func(t *testing.T, at place) {
		c, p := acceptLeaver(t, at, "waits")
		s := &stream{}
		require.NoError(t, s.receive(c, written))
		p.say("exit")
		requireEnd(t, at, s.drain(c))
		require.Equal(t, written, s.pos)
		p.wait()
	})
}

// What the process has not sent when it exits is lost: TCP's kernel would send it. The stream
// that was cut short does not look whole.
func TestExitRightAfterWriteIsAReset(t *testing.T) {
	besideTCP(t, func(t *testing.T, at place) {
		c, p := acceptLeaver(t, at, "")
		s := &stream{}
		requireEnd(t, at, s.drain(c))
		if at.network == "tcp" {
			require.Equal(t, written, s.pos)
		}
		t.Logf("%d of %d bytes", s.pos, written)
		p.wait()
	})
}

func TestExitAfterCloseIsAnEOF(t *testing.T) {
	besideTCP(t, func(t *testing.T, at place) {
		c, p := acceptLeaver(t, at, "closes")
		require.NoError(t, (&stream{}).receiveAll(c, written))
		p.wait()
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

// A program that wants TCP's end, because its messages say themselves how long they are, has it
// by a wrapper of the connections that it accepts.
func TestResetAsEOF(t *testing.T) {
	besideTCP(t, func(t *testing.T, at place) {
		c, p := acceptLeaver(t, at, "waits")
		s := &stream{}
		require.NoError(t, s.receive(c, written))
		p.say("exit")
		require.NoError(t, s.drain(resetAsEOF{c}))
		p.wait()
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
// closes the connection before, or waits for a line, as does says.
func acceptLeaver(t *testing.T, at place, does string) (net.Conn, *process) {
	t.Helper()
	listen := ringnet.Listen
	if at.network == "tcp" {
		listen = net.Listen
	}
	l, err := listen(at.network, at.any())
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
	if err := (&stream{}).send(c, written, 10_000); err != nil {
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

// requireEnd requires that the stream of a process that has exited without Close ends in an error:
// in nil, which stands for io.EOF, over TCP, and in ECONNRESET over ringnet.
func requireEnd(t *testing.T, at place, err error) {
	t.Helper()
	if at.network == "tcp" {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
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
	for range times(3, 50) {
		c, p := connectToVictim(t, endless, "and read")
		failed := make(chan error, 2)
		go func() { failed <- (&stream{}).receive(c, endless) }()
		go func() { failed <- (&stream{}).send(c, endless, 10_000) }()
		hang.Unless(t, func() bool { return c.Stats().BytesReceived > 1<<20 })
		p.kill()
		requireReset(t, failed)
		requireReset(t, failed)
	}
}

// endless is more bytes than can be sent before the peer is killed.
const endless = 1 << 30

// connectToVictim connects to a process that writes n bytes, reads if it is told to, and
// waits to be killed. No probe and no timeout ends the connection then, but the news of the
// victim's kernel alone.
func connectToVictim(t *testing.T, n int, andRead ...string) (*ringnet.Conn, *process) {
	t.Helper()
	l := listen(t, ringnet.ListenConfig{Config: &ringnet.Config{KeepAlive: time.Hour, ResumeTimeout: time.Hour}})
	p := start(t, "victim", append([]string{l.Addr().String(), strconv.Itoa(n)}, andRead...)...)
	return accept(t, l), p
}

// victim is a process to be killed.
func victim(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	// A ring of its own takes 1 MiB from the start.
	d := ringnet.Dialer{Config: &ringnet.Config{Dedicated: true}}
	c, err := d.Dial("rdma", args[0])
	if err != nil {
		return err
	}
	if len(args) > 2 {
		go io.Copy(io.Discard, c)
	}
	if err := (&stream{}).send(c, n, 10_000); err != nil {
		return err
	}
	hear() // until the test has ended
	return nil
}

// requireReset waits for an error, which must say that the peer has reset the connection.
func requireReset(t *testing.T, errs <-chan error) {
	t.Helper()
	select {
	case err := <-errs:
		require.ErrorIs(t, err, syscall.ECONNRESET)
	case <-time.After(hang.After):
		t.Fatal("no error")
	}
}
