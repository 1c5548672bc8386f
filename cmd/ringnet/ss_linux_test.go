package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/inspect"
)

// twoEnds are connections of this process over shm, which answers when they are returned.
func twoEnds(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err = ringnet.Dial("shm", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	require.Eventually(t, func() bool {
		out, _, _ := ringnetCommand(t, "ss", "--process", fmt.Sprint(os.Getpid()), "--address", client.LocalAddr().String())
		return strings.Count(out, "\n") == 3
	}, patience, 10*time.Millisecond)
	return client, server
}

func TestSsShowsConnectionsAndKillEndsOne(t *testing.T) {
	client, server := twoEnds(t)
	_, err := client.Write(make([]byte, 5000))
	require.NoError(t, err)
	pid, local := fmt.Sprint(os.Getpid()), client.LocalAddr().String()
	_, port, err := net.SplitHostPort(local)
	require.NoError(t, err)

	out, errs, status := ringnetCommand(t, "--json", "ss", "--process", pid, "--address", ":"+port)
	require.Zero(t, status, errs)
	var all []inspect.Process
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Len(t, all, 1)
	require.Len(t, all[0].Connections, 2)
	var own inspect.Connection
	for _, c := range all[0].Connections {
		if c.Local == local {
			own = c
		}
	}
	require.EqualValues(t, 5000, own.BytesWritten)

	for _, flag := range []string{"--carrier=tcp", "--state=reset", "--address=192.0.2.1"} {
		out, errs, status = ringnetCommand(t, "ss", "--process", pid, flag)
		require.Zero(t, status, errs)
		require.Equal(t, 1, strings.Count(out, "\n"), "%s: %s", flag, out)
	}
	out, errs, status = ringnetCommand(t, "ss", "--links", "--process", pid)
	require.Zero(t, status, errs)
	require.Contains(t, out, "CONNECTIONS")
	require.Contains(t, out, local)

	_, errs, status = ringnetCommand(t, "kill", pid, fmt.Sprint(own.Number))
	require.Zero(t, status, errs)
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNABORTED)
	_, err = server.Write(make([]byte, 1))
	for err == nil {
		_, err = server.Write(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestSsShowsAThousandConnections(t *testing.T) {
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for range 500 {
		client, err := ringnet.Dial("shm", l.Addr().String())
		require.NoError(t, err)
		defer client.Close()
		server, err := l.Accept()
		require.NoError(t, err)
		defer server.Close()
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // it answers a moment after its first connection
		out, _, _ := ringnetCommand(t, "ss", "--process", fmt.Sprint(os.Getpid()), "--address", ":"+port)
		return strings.Count(out, "\n") == 1+1000
	}, patience, 10*time.Millisecond)
}

func TestSsGoesOnWithoutAProcessThatIsKilled(t *testing.T) {
	p := start(t, "proxy", "--listen", "shm://127.0.0.1:0", "--to", "tcp://"+serve(t, echo))
	pid := fmt.Sprint(p.cmd.Process.Pid)
	c, err := ringnet.Dial("shm", p.address(0))
	require.NoError(t, err)
	defer c.Close()
	shows := func(connections int) func() bool {
		return func() bool { // a process that is killed while it is asked has not answered
			out, _, status := ringnetCommand(t, "ss", "--process", pid)
			return status == 0 && strings.Count(out, "\n") == 1+connections
		}
	}
	require.Eventually(t, shows(1), patience, 10*time.Millisecond)
	require.NoError(t, p.cmd.Process.Kill())
	require.Eventually(t, shows(0), patience, 10*time.Millisecond)
	_, errs, status := ringnetCommand(t, "kill", pid, "1")
	require.Equal(t, failed, status)
	require.Contains(t, errs, "there is no process "+pid)
	_ = p.stop()
}

func TestWatchingLinksShowsRates(t *testing.T) {
	const local = "10.0.0.1:1"
	before := survey{all: []inspect.Process{{PID: 1, At: time.Unix(1, 0), Links: []inspect.Link{{Local: local, BytesSent: 1 << 10}}}}}
	after := survey{all: []inspect.Process{{PID: 1, At: time.Unix(3, 0), Links: []inspect.Link{{Local: local, BytesSent: 5 << 10, SendQueue: 64, Outstanding: 3}, {Local: "new"}}}}}
	table := linkTable(after, before, true)
	require.Equal(t, "3/64", table[1][9])
	require.Equal(t, []string{"2.0KiB", "0B"}, table[1][12:14])
	require.Equal(t, []string{"-", "-"}, table[2][12:14])
}

// What another user's process tells may not move root's cursor.
func TestNothingThatIsToldReachesTheTerminalAsItIs(t *testing.T) {
	v := survey{at: time.Now(), all: []inspect.Process{{
		PID: 1, Program: "中文\x1b[2Jx\u0301\x7f\n" + strings.Repeat("y", 1000),
		Links:       []inspect.Link{{Network: "\x1b", Local: "a\tb", Remote: "\r", PathLocal: "\x07:1"}},
		Connections: []inspect.Connection{{Carrier: "\x1b", Local: "\u009b", Remote: "\r", State: "\x1b", PassedOver: []inspect.PassedOver{{Network: "\x1b", Code: "\n"}}, Unread: -1, Unsent: -1}},
	}}}
	clean(&v.all[0])
	_, rows := busiest(v, survey{}, nil, nil)
	for _, table := range [][][]string{connectionTable(v, survey{}, true), linkTable(v, survey{}, true), rows} {
		require.Len(t, table, 2)
		var out bytes.Buffer
		require.NoError(t, printTable(&out, table))
		require.Regexp(t, `^([ -~]+\n){2}$`, out.String())
	}
	text, err := json.Marshal(v.all)
	require.NoError(t, err)
	require.NotRegexp(t, `[\x{7f}-\x{9f}]`, string(text))
}

// terminal is one of a size, and what was drawn on it.
func terminal(t *testing.T, width, height uint16) (tty *os.File, drawn func() string) {
	t.Helper()
	m, tty := pseudoTerminal(t, width, height)
	return tty, func() string {
		b := make([]byte, 1<<16)
		n, err := m.Read(b)
		require.NoError(t, err)
		return string(b[:n])
	}
}

func TestTopFitsTheTerminal(t *testing.T) {
	tty, drawn := terminal(t, 20, 4)
	s := newScreen(tty)
	require.NotNil(t, s.terminal)
	_ = drawn()
	rows := [][]string{{"HEAD"}}
	for range 1000 {
		rows = append(rows, []string{strings.Repeat("x", 50)})
	}
	s.draw("summary", rows)
	picture := strings.Split(drawn(), "\r\n")
	require.Len(t, picture, 4)
	for _, line := range picture {
		line = strings.NewReplacer("\r", "", "\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(line)
		require.LessOrEqual(t, len(line), 20)
	}
}

func TestTopIsDrawnAnewWhenTheTerminalHasAnotherSize(t *testing.T) {
	tty, drawn := terminal(t, 80, 25)
	ctx, stop := context.WithCancel(t.Context())
	var top sync.WaitGroup
	top.Go(func() {
		c := topCommand{Interval: time.Hour} // so only the size has it drawn again
		assert.NoError(t, c.Run(ctx, &streams{out: tty}))
	})
	var picture string
	for !strings.Contains(picture, "looking for 1h") {
		picture += drawn()
	}
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 7}))
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGWINCH)) // which the kernel sends to those in the terminal
	for picture = drawn(); !strings.Contains(picture, "looking\x1b[K"); {
		picture += drawn()
	}
	require.NotContains(t, picture, "looking for")
	stop()
	top.Wait()
	for picture = ""; !strings.Contains(picture, "\x1b[?25h\x1b[?1049l"); {
		picture += drawn() // the cursor is back
	}
}

// Who suspends top has the shell's screen back, and top draws on its own when it goes on.
func TestTopLeavesTheScreenWhenItIsSuspended(t *testing.T) {
	tty, drawn := terminal(t, 80, 25)
	top := commandProcess("top", "--interval=1h")
	top.Stdout = tty
	require.NoError(t, top.Start())
	until := func(want string) {
		for picture := ""; !strings.Contains(picture, want); {
			picture += drawn()
		}
	}
	until("looking for 1h")
	for range 2 {
		require.NoError(t, top.Process.Signal(unix.SIGTSTP))
		until("\x1b[?25h\x1b[?1049l")
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", top.Process.Pid))
			require.NoError(t, err)
			return bytes.Contains(stat, []byte(") T "))
		}, patience, time.Millisecond)
		require.NoError(t, top.Process.Signal(unix.SIGCONT))
		until("\x1b[?1049h\x1b[?25l")
	}
	require.NoError(t, top.Process.Signal(os.Interrupt))
	require.NoError(t, top.Wait())
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
	require.NoError(t, top.Run(ctx, &streams{out: &out}))
	require.Contains(t, out.String(), "SENT/s")
	require.Contains(t, out.String(), client.LocalAddr().String())
	require.Regexp(t, `\d+%`, out.String())
}

func TestTopShowsHowMuchOfTheTimeAProcessPolls(t *testing.T) {
	at := func(s int64, polled time.Duration) survey {
		return survey{at: time.Unix(s, 0), all: []inspect.Process{{ID: "a", PID: 1, At: time.Unix(s, 0), Polling: int64(polled), Connections: []inspect.Connection{{Number: 1}}}}}
	}
	_, rows := busiest(at(3, 3*time.Second/2), at(1, time.Second), map[int]time.Duration{1: 3 * time.Second}, map[int]time.Duration{1: time.Second})
	require.Equal(t, []string{"CPU", "POLLING"}, rows[0][2:4])
	require.Equal(t, []string{"100%", "25%"}, rows[1][2:4])
}
