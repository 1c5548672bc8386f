//go:build linux

package integration_test

import (
	"io"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/hang"
)

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
