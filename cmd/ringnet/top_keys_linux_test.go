package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

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

func TestTopEndsWhenAKeySaysSo(t *testing.T) {
	for _, key := range []string{"q", "\x1b", "\x03"} {
		master, tty := pseudoTerminal(t, 80, 25)
		before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		require.NoError(t, err)
		top := commandProcess("top", "--interval=1h")
		top.Stdin, top.Stdout = tty, tty
		top.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		errs := new(strings.Builder)
		top.Stderr = errs
		require.NoError(t, top.Start())
		var drawn []byte
		for b := make([]byte, 1<<16); !bytes.Contains(drawn, []byte("looking for 1h")); {
			n, err := master.Read(b)
			require.NoError(t, err)
			drawn = append(drawn, b[:n]...)
		}
		_, err = master.WriteString(key)
		require.NoError(t, err)
		require.NoError(t, top.Wait(), "%q: %s", key, errs)
		after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		require.NoError(t, err)
		require.Equal(t, before, after, "the terminal is as it was")
	}
	out, err := commandProcess("top", "--help").Output()
	require.NoError(t, err)
	require.Contains(t, strings.Join(strings.Fields(string(out)), " "), "q, Escape or Ctrl-C ends it")
}

// pseudoTerminal is a terminal of a size, and the end of it at which a user types and reads.
func pseudoTerminal(t *testing.T, width, height uint16) (master, tty *os.File) {
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
	return master, tty
}
