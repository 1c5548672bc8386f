package rdmaudp

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// What waits in the process's goroutines cannot be for a thread in another network namespace, nor for a bubble.
func TestListenAndDialAreRefusedWhereGoroutinesDoNotReach(t *testing.T) {
	refused := func(t *testing.T, why string) {
		_, err := Listen("rdma-udp", "127.0.0.1:0")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, why)
		_, err = Dial("rdma-udp", "127.0.0.1:1")
		require.ErrorContains(t, err, why)
	}
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { refused(t, "RDMA in a bubble of testing/synctest") })
	})
	t.Run("namespace", func(t *testing.T) {
		runtime.LockOSThread() // until the goroutine ends, and the thread with it
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			t.Skip("network namespaces are root's here: ", err)
		}
		refused(t, "another network namespace")
	})
}
