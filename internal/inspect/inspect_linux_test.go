package inspect

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// A link begins and ends connections with its lock held.
func TestNobodyWhoBeginsAConnectionWaitsForASystemCall(t *testing.T) {
	t.Setenv(env, "on")
	a := New(func(Request) Process { return Process{} })
	waited := make(chan bool, 2)
	control := refuseDescriptors
	defer func() { refuseDescriptors = control }()
	refuseDescriptors = func(network, address string, c syscall.RawConn) error {
		done := make(chan struct{})
		go func() {
			a.Hold()
			a.Release()
			a.Release() // the last: the socket is no longer needed when it is made
			close(done)
		}()
		select {
		case <-done:
			waited <- false
		case <-time.After(hang.After):
			waited <- true
		}
		return control(network, address, c)
	}
	a.Hold()
	require.False(t, <-waited)
	silent := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return !a.listening && a.end == nil
	}
	hang.Unless(t, silent)
}
