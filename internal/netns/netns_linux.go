package netns

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// mayEnter reports whether a thread of this process may be in another namespace than the others.
// That takes CAP_SYS_ADMIN, which no process of several threads gets later than exec, and which
// one may drop once a thread is in its namespace.
var mayEnter = canAdminister()

func canAdminister() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err != nil || data[0].Permitted&(1<<unix.CAP_SYS_ADMIN) != 0
}

// ofProcess are the two numbers of the namespace that goroutines are in, which is that of any thread
// that none of them is locked to.
var ofProcess = sync.OnceValue(func() (known struct{ byName, byCookie Namespace }) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		known.byName, known.byCookie = name(), cookie()
	}()
	<-done
	return known
})

// Current returns the namespace of the calling thread.
func Current() Namespace {
	if !mayEnter {
		return 0
	}
	known := ofProcess()
	n := name()
	if n == 0 {
		n = cookie()
	}
	if n == known.byName || n == known.byCookie {
		return 0
	}
	return n
}

const path = "/proc/thread-self/ns/net"

// name returns the namespace of the calling thread by its inode, or 0 where /proc is not mounted.
func name() Namespace {
	var text [64]byte // as "net:[4026531840]"
	n, err := unix.Readlink(path, text[:])
	if err != nil {
		return 0
	}
	var inode Namespace
	for _, c := range text[:n] {
		if '0' <= c && c <= '9' {
			inode = 10*inode + Namespace(c-'0')
		}
	}
	return inode
}

// cookie returns it by the number that Linux 5.14 and later give it for good. No inode has the same.
func cookie() Namespace {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	number, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return Namespace(number) | 1<<63
}

// Entry leads goroutines into a namespace, and keeps it from being deleted. nil leads into the process's.
type Entry struct{ file *os.File }

// Enter returns the Entry of the namespace, which has to be the calling thread's, or an error if it
// cannot be entered. The caller closes it.
func (n Namespace) Enter() (*Entry, error) {
	e, err := n.open()
	if err != nil {
		return nil, err
	}
	if err := e.Do(func() {}); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// open does so, too, but does not know whether it can be entered.
func (n Namespace) open() (*Entry, error) {
	if n == 0 {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, entryError(err)
	}
	return &Entry{f}, nil
}

// Do calls f on a thread that is in the namespace, and waits for it, or returns an error as Go does.
func (e *Entry) Do(f func()) error {
	if e == nil {
		f()
		return nil
	}
	done := make(chan struct{})
	err := e.Go(func() {
		defer close(done)
		f()
	})
	if err == nil {
		<-done
	}
	return err
}

// Close frees what the Entry takes. Goroutines go on.
func (e *Entry) Close() {
	if e != nil {
		_ = e.file.Close()
	}
}

// setns is a variable because tests replace it.
var setns = unix.Setns

// Go calls f in another goroutine, on a thread that is in the namespace, or returns an error if
// no thread can enter it.
func (e *Entry) Go(f func()) error {
	if e == nil {
		go f()
		return nil
	}
	entered := make(chan error)
	go e.enter(entered, f)
	return <-entered
}

// enter calls f when the calling goroutine's thread, which ends with it, has entered the namespace.
// It leaves the main thread alone, which does not end, and by which others find the process's
// namespace.
func (e *Entry) enter(entered chan<- error, f func()) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		took := make(chan error)
		go e.enter(took, f)
		err := <-took // by then that goroutine has another thread
		runtime.UnlockOSThread()
		entered <- err
		return
	}
	if err := setns(int(e.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		entered <- entryError(os.NewSyscallError("setns", err))
		return
	}
	entered <- nil
	f()
}

func entryError(err error) error {
	return fmt.Errorf("this thread is in a network namespace that others of this process cannot enter: %w", err)
}
