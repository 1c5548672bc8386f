//go:build linux && cgo

package verbs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

func TestUseAfterCloseIsAnError(t *testing.T) {
	a, _ := pair(t)
	require.NoError(t, a.Close())
	for name, call := range map[string]func() error{
		"Open":       func() error { _, err := a.Open(options); return err },
		"PostRecv":   func() error { return a.PostRecv(1) },
		"PostSend":   func() error { return a.PostSend(make([]fabric.WorkRequest, 1)) },
		"Poll":       func() error { _, err := a.Poll(make([]fabric.Completion, 1)); return err },
		"Arm":        a.Arm,
		"Connect":    func() error { _, err := a.Connect(context.Background(), nil); return err },
		"Confirm":    a.Confirm,
		"Accept":     func() error { return a.Accept(context.Background(), nil) },
		"Reject":     func() error { return a.Reject(nil) },
		"Disconnect": a.Disconnect,
	} {
		assert.ErrorIs(t, call(), net.ErrClosed, name)
	}
	_, err := a.Register(1, fabric.LocalWrite)
	assert.Error(t, err)
}

// However far set-up came, Close takes it back.
func TestCloseInEveryState(t *testing.T) {
	f, addr := onDevice(t)
	l := listen(t, f, addr)
	steps := []func(a fabric.Endpoint) error{
		func(a fabric.Endpoint) error { _, err := a.Open(options); return err },
		func(a fabric.Endpoint) error { _, err := a.Register(1, fabric.RemoteWrite); return err },
		func(a fabric.Endpoint) error { return a.PostRecv(options.RecvQueue) },
		func(a fabric.Endpoint) error {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			a.Connect(ctx, nil)
			return nil
		},
	}
	for n := range len(steps) + 1 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			a, err := f.Dial(context.Background(), netip.AddrPort{}, l.Addr())
			require.NoError(t, err)
			for _, step := range steps[:n] {
				require.NoError(t, step(a))
			}
			require.NoError(t, a.Close())
			require.NoError(t, a.Close(), "again")
		})
	}
}

// A child process must not get the rings.
func TestRegisteredMemoryStaysInThisProcess(t *testing.T) {
	a, _ := pair(t)
	m := register(t, a, 1<<20, fabric.RemoteWrite)
	assert.True(t, rdmatest.RegisteredAt(t, m.Addr()))
}
