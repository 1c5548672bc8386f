package netns

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMain has the main goroutine call functions on the main thread.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	done := make(chan int)
	go func() { done <- m.Run() }()
	for {
		select {
		case f := <-onMain:
			f()
		case code := <-done:
			os.Exit(code)
		}
	}
}

var onMain = make(chan func())

// inNew calls f on a thread, which it ends, in a new namespace.
func inNew(t *testing.T, f func()) {
	if !mayEnter {
		t.Skip("only who has CAP_SYS_ADMIN can make namespaces")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		require.NoError(t, syscall.Unshare(syscall.CLONE_NEWNET))
		f()
	}()
	<-done
}

func TestThreadsHaveTheirNamespace(t *testing.T) {
	require.Zero(t, Current())
	inNew(t, func() {
		n := Current()
		require.NotZero(t, n)
		require.Equal(t, n, Current())
		inNew(t, func() { require.NotEqual(t, n, Current()) })
		in := make(chan Namespace)
		go func() { in <- Current() }()
		require.Zero(t, <-in)
		for range 20 {
			require.NoError(t, n.Go(func() { in <- Current() }))
			require.Equal(t, n, <-in)
		}
	})
	require.Zero(t, Current())
}

func TestGoInTheProcesssNamespaceTakesNoThread(t *testing.T) {
	done := make(chan struct{})
	require.NoError(t, Current().Go(func() { close(done) }))
	<-done
	e, err := Current().Enter()
	require.NoError(t, err)
	require.Nil(t, e)
}

// The main thread does not end with a goroutine, and shows others the process's namespace.
func TestGoLeavesTheMainThreadAlone(t *testing.T) {
	inNew(t, func() {
		e, err := Current().Enter()
		require.NoError(t, err)
		defer e.Close()
		in, entered, left := make(chan Namespace), make(chan error, 1), make(chan Namespace)
		onMain <- func() {
			e.enter(entered, func() { in <- Current() })
			left <- Current()
		}
		require.NoError(t, <-entered)
		require.Zero(t, <-left)
		require.Equal(t, Current(), <-in)
	})
}

func TestGoWhereAThreadCannotEnter(t *testing.T) {
	setns = func(int, int) error { return unix.EPERM }
	defer func() { setns = unix.Setns }()
	inNew(t, func() {
		require.ErrorIs(t, Current().Go(func() { panic("called") }), unix.EPERM)
		_, err := Current().Enter()
		require.ErrorIs(t, err, unix.EPERM)
	})
}

func BenchmarkCurrent(b *testing.B) {
	for b.Loop() {
		Current()
	}
}
