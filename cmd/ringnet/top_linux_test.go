package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal is one of a size, and the end of it at which a user types. until returns what is drawn there until
// it has a text.
func terminal(t *testing.T, width, height uint16) (master, tty *os.File, until func(want string) string) {
	t.Helper()
	t.Setenv("TERM", "xterm")
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tty.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}))
	return master, tty, func(want string) (drawn string) {
		for b := make([]byte, 1<<16); !strings.Contains(drawn, want); {
			n, err := master.Read(b)
			require.NoError(t, err)
			drawn += string(b[:n])
		}
		return drawn
	}
}

// The terminal is another's while top draws, and this one's afterwards.
const entered, left = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"

func TestTopFitsTheTerminal(t *testing.T) {
	_, tty, until := terminal(t, 20, 4)
	s := newScreen(tty)
	require.NotNil(t, s.terminal)
	until(entered)
	rows := [][]string{{"HEAD"}}
	for range 1000 {
		rows = append(rows, []string{strings.Repeat("x", 50)})
	}
	s.draw("summary", rows)
	picture := strings.Split(until("\x1b[J"), "\r\n")
	require.Len(t, picture, 4)
	for _, line := range picture {
		line = strings.NewReplacer("\r", "", "\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(line)
		require.LessOrEqual(t, len(line), 20)
	}
}

func TestTopIsDrawnAnewWhenTheTerminalHasAnotherSize(t *testing.T) {
	_, tty, until := terminal(t, 80, 25)
	ctx, stop := context.WithCancel(t.Context())
	var top sync.WaitGroup
	top.Go(func() {
		c := topCommand{Interval: time.Hour} // so only the size has it drawn again
		assert.NoError(t, c.Run(ctx, &streams{terminal: tty}))
	})
	until("looking for 1h")
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 7}))
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGWINCH)) // which the kernel sends to those in the terminal
	require.NotContains(t, until("looking\x1b[K"), "looking for")
	stop()
	top.Wait()
	until(left)
}

// Who suspends top has the shell's screen back, and top draws on its own when it goes on. A key, or a signal, ends it,
// and the terminal is as it was.
func TestTopLeavesTheScreenToOthers(t *testing.T) {
	for _, key := range []string{"q", "\x1b", "\x03"} {
		master, tty, until := terminal(t, 80, 25)
		before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		require.NoError(t, err)
		top := commandProcess("top", "--interval=1h")
		top.Stdin, top.Stdout = tty, tty
		top.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		errs := new(strings.Builder)
		top.Stderr = errs
		require.NoError(t, top.Start())
		until("looking for 1h")
		for range 2 {
			require.NoError(t, top.Process.Signal(unix.SIGTSTP))
			until(left)
			require.Eventually(t, func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", top.Process.Pid))
				require.NoError(t, err)
				return bytes.Contains(stat, []byte(") T "))
			}, patience, time.Millisecond)
			require.NoError(t, top.Process.Signal(unix.SIGCONT))
			until(entered)
		}
		_, err = master.WriteString(key)
		require.NoError(t, err)
		require.NoError(t, top.Wait(), "%q: %s", key, errs)
		after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	out, err := commandProcess("top", "--help").Output()
	require.NoError(t, err)
	require.Contains(t, strings.Join(strings.Fields(string(out)), " "), "q, Escape or Ctrl-C ends it")
}

func TestTopShowsWhatCarriesMostFirst(t *testing.T) {
	client, server := twoEnds(t)
	go func() {
		b := make([]byte, 64<<10)
		for {
			if _, err := server.Read(b); err != nil {
				return
			}
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	var out bytes.Buffer
	top := topCommand{shown: shown{Process: fmt.Sprint(os.Getpid())}, Interval: 50 * time.Millisecond}
	go func() {
		for range 20 {
			_, _ = client.Write(make([]byte, 10_000))
			time.Sleep(20 * time.Millisecond)
		}
		stop()
	}()
	require.NoError(t, top.Run(ctx, &streams{terminal: &out}))
	require.Contains(t, out.String(), "SENT/s")
	require.Contains(t, out.String(), client.LocalAddr().String())
	require.Regexp(t, `\d+%`, out.String())
}

// typing is what is typed, one read after the other.
type typing []string

func (k *typing) Read(p []byte) (int, error) {
	if len(*k) == 0 {
		return 0, io.EOF
	}
	n := copy(p, (*k)[0])
	*k = (*k)[1:]
	return n, nil
}

func TestKeysThatEndTop(t *testing.T) {
	const up, keypad = "\x1b[A", "\x1bOq"
	for typed, want := range map[string]bool{"q": true, "Q": true, "xq": true, "\x1b": true, "x " + up + " " + keypad + " \r": false} {
		keys, ended := typing(strings.Split(typed, " ")), false
		endedBy(&keys, func() { ended = true })
		require.Equal(t, want, ended, "%q", typed)
	}
}
