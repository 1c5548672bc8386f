//go:build linux

package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// transfer is how much to send, how, and over what: both processes derive it from the same
// seed.
type transfer struct {
	*stream
	total, most int
	config      *ringnet.Config
}

func newTransfer(seed uint64) transfer {
	r := rand.New(rand.NewPCG(seed, 0))
	tr := transfer{
		stream: &stream{seed: seed},
		total:  1 + r.IntN(1<<(5+r.IntN(15))), // small ones as likely as large ones
		most:   1 + r.IntN(1<<(5+r.IntN(13))),
	}
	if r.IntN(2) == 0 {
		tr.config = &ringnet.Config{
			RecvBuffer: 4096 << r.IntN(6),
			SendBuffer: 4096 << r.IntN(6),
			SendQueue:  16 + r.IntN(100),
			RecvQueue:  4 + 4*r.IntN(30),
		}
	}
	// Many tiny Writes take long and prove no more.
	tr.total = min(tr.total, 2000*tr.most)
	return tr
}

// dialAndSend is one whole transfer, from Dial to Close.
func (tr transfer) dialAndSend(addr string) error {
	c, err := (&ringnet.Dialer{Config: tr.config}).Dial("rdma", addr)
	if err != nil {
		return err
	}
	if err := tr.send(c, tr.total, tr.most); err != nil {
		return err
	}
	return c.Close()
}

// acceptAndReceive is the other end of dialAndSend.
func (tr transfer) acceptAndReceive(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	return tr.receiveAll(c, tr.total)
}

func TestCloseRightAfterTheLastWriteDeliversEverything(t *testing.T) {
	l := listen(t, ringnet.ListenConfig{})
	for seed := range uint64(times(20, 100)) {
		atOnce(t,
			func() error { return about(seed, newTransfer(seed).dialAndSend(l.Addr().String())) },
			func() error { return about(seed, newTransfer(seed).acceptAndReceive(l)) })
	}
}

func TestCloseRightBeforeExitDeliversEverything(t *testing.T) {
	l := listen(t, ringnet.ListenConfig{})
	for seed := range uint64(times(5, 100)) {
		p := start(t, "writer", l.Addr().String(), strconv.FormatUint(seed, 10))
		require.NoError(t, about(seed, newTransfer(seed).acceptAndReceive(l)))
		p.wait()
	}
}

// writer is a process that sends a transfer and exits.
func writer(args []string) error {
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	return newTransfer(seed).dialAndSend(args[0])
}

// about returns err with the transfer that it is about.
func about(seed uint64, err error) error {
	if err != nil {
		return fmt.Errorf("transfer %d: %w", seed, err)
	}
	return nil
}

func TestWriteDeadlineLosesAndRepeatsNothing(t *testing.T) {
	l := listen(t, ringnet.ListenConfig{})
	p := start(t, "filler", l.Addr().String())
	c := accept(t, l)
	ours := &stream{seed: 1}
	require.NoError(t, fill(c, ours))
	theirs, err := strconv.Atoi(p.hear()) // when it is known, both ends have stopped
	require.NoError(t, err)
	p.say(strconv.Itoa(ours.pos))
	require.NoError(t, goOn(c, ours, &stream{seed: 2}, theirs))
	p.wait()
}

// filler is the process at the other end of
// TestWriteDeadlineLosesAndRepeatsNothing.
func filler(args []string) error {
	// A ring of its own takes 1 MiB from the start.
	d := ringnet.Dialer{Config: &ringnet.Config{Dedicated: true}}
	c, err := d.Dial("rdma", args[0])
	if err != nil {
		return err
	}
	ours := &stream{seed: 2}
	if err := fill(c, ours); err != nil {
		return err
	}
	say(strconv.Itoa(ours.pos))
	theirs, err := strconv.Atoi(hear())
	if err != nil {
		return err
	}
	if err := goOn(c.(*ringnet.Conn), ours, &stream{seed: 1}, theirs); err != nil {
		return err
	}
	return c.Close()
}

// fill writes the stream to a connection that nobody reads, until a Write has accepted
// nothing before its deadline.
func fill(c net.Conn, s *stream) error {
	for {
		if err := c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		n, err := c.Write(s.next(10_000))
		s.pos -= 10_000 - n
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && s.pos >= 1<<20 {
			return nil // a ring full
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// goOn continues after fill: it writes more, and reads the peer's bytes, of which so many
// had been accepted when both ends stopped.
func goOn(c *ringnet.Conn, ours, theirs *stream, accepted int) error {
	const more = 300_000
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		err := ours.send(c, more, 5000)
		sent <- errors.Join(err, c.CloseWrite())
	}()
	err := theirs.receiveAll(c, accepted+more)
	return errors.Join(err, <-sent)
}
