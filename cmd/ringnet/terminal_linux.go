package main

import (
	"os"
	"os/signal"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// notifyTerminal tells when the terminal has another size, and when the user suspends this process, by
// Ctrl-Z.
func notifyTerminal(resized, suspended chan<- os.Signal) {
	signal.Notify(resized, unix.SIGWINCH)
	signal.Notify(suspended, unix.SIGTSTP)
}

// suspend stops this process, and returns when it goes on.
func suspend() {
	runtime.LockOSThread() // the one that gets the signal does not come back before
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// takeKeys has a terminal give keys when they are typed, and not show them, until undo is called. What is no
// terminal stays as it is.
func takeKeys(f *os.File) (undo func()) {
	before, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return func() {}
	}
	keys := *before
	keys.Lflag &^= unix.ICANON | unix.ECHO // Ctrl-C and Ctrl-Z stay signals
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
	_ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &keys)
	return func() { _ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, before) }
}

// processorTimes are the processor times that the processes of a survey have used.
func processorTimes(v survey) map[int]time.Duration {
	used := make(map[int]time.Duration)
	for _, p := range v.all {
		of, err := procfs.NewProc(p.PID)
		if err != nil {
			continue
		}
		if stat, err := of.Stat(); err == nil {
			used[p.PID] = time.Duration(stat.CPUTime() * float64(time.Second))
		}
	}
	return used
}
