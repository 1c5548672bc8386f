package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// terminalSize is how many columns and lines a terminal has.
func terminalSize(f *os.File) (width, height int, err error) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, err
	}
	return int(size.Col), int(size.Row), nil
}

// notifyResized tells when the terminal has another size.
func notifyResized() (resized <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGWINCH)
	return c, func() { signal.Stop(c) }
}

// notifySuspended tells when the user suspends this process, by Ctrl-Z; suspend does that then, and returns
// when it goes on.
func notifySuspended() (suspended <-chan os.Signal, suspend func(context.Context), ignore func()) {
	stops, continues := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stops, unix.SIGTSTP)
	signal.Notify(continues, unix.SIGCONT)
	suspend = func(ctx context.Context) {
		select {
		case <-continues: // of an earlier time
		default:
		}
		if unix.Kill(os.Getpid(), unix.SIGSTOP) != nil {
			return
		}
		select {
		case <-continues:
		case <-ctx.Done():
		}
	}
	return stops, suspend, func() { signal.Stop(stops); signal.Stop(continues) }
}

// processorTimes are the processor times that the processes of a survey have used.
func processorTimes(v survey) map[int]time.Duration {
	used := make(map[int]time.Duration)
	for _, p := range v.all {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		if err != nil {
			continue
		}
		// The name, which may have blanks, ends with the last bracket; user and system time are
		// the 12th and 13th fields behind it, in hundredths of a second (proc_pid_stat(5)).
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		const user, system, tick = 11, 12, 10 * time.Millisecond
		if len(fields) <= system {
			continue
		}
		u, _ := strconv.ParseInt(string(fields[user]), 10, 64)
		s, _ := strconv.ParseInt(string(fields[system]), 10, 64)
		used[p.PID] = time.Duration(u+s) * tick
	}
	return used
}
