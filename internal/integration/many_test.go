//go:build linux

package integration_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

func TestManyConnectionsAtOnce(t *testing.T) {
	const many, bytes = 64, 20_000
	l := listen(t, ringnet.ListenConfig{})
	exchange := func(c net.Conn, out, in uint64) error {
		sent := make(chan error, 1)
		go func() { sent <- (&stream{seed: out}).send(c, bytes, 3000) }()
		if err := (&stream{seed: in}).receive(c, bytes); err != nil {
			return err
		}
		return <-sent
	}
	var all []func() error
	dialed, accepted := make([]net.Conn, many), make([]net.Conn, many)
	for i := range many {
		all = append(all, func() (err error) {
			if dialed[i], err = ringnet.Dial("rdma", l.Addr().String()); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			return exchange(dialed[i], 1, 2)
		}, func() (err error) {
			if accepted[i], err = l.Accept(); err != nil {
				return err
			}
			return exchange(accepted[i], 2, 1)
		})
	}
	atOnce(t, all...)
	// All of them still work.
	for i := range many {
		require.NoError(t, dialed[i].Close())
		require.NoError(t, accepted[i].Close())
	}
}

// Whoever has read a message sees what was written to memory before it was sent: under the
// race detector this is no data race.
func TestMessagesOrderMemory(t *testing.T) {
	d, a := pair(t)
	var shared int
	atOnce(t, func() error {
		for i := range 100 {
			shared = i
			if _, err := d.Write([]byte{0}); err != nil {
				return err
			}
			if _, err := d.Read(make([]byte, 1)); err != nil {
				return err
			}
			if shared != -1 {
				return fmt.Errorf("%d, want -1", shared)
			}
		}
		return nil
	}, func() error {
		for i := range 100 {
			if _, err := a.Read(make([]byte, 1)); err != nil {
				return err
			}
			if shared != i {
				return fmt.Errorf("%d, want %d", shared, i)
			}
			shared = -1
			if _, err := a.Write([]byte{0}); err != nil {
				return err
			}
		}
		return nil
	})
}
