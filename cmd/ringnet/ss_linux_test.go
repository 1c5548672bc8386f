package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/inspect"
	"github.com/ringnet/ringnet/internal/link"
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

	before := time.Now()
	out, errs, status := ringnetCommand(t, "--json", "ss", "--process", pid, "--address", ":"+port)
	require.Zero(t, status, errs)
	var all []inspect.Process
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Len(t, all, 1)
	require.False(t, all[0].At.Before(before.Round(0)), all[0].At)
	require.False(t, all[0].At.After(time.Now()), all[0].At)
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

// A process that answers late has the look end late. The others, which have answered at once, have moved bytes
// until the next look for longer than the time between the ends of the two.
func TestRatesAreByTheTimesOfTheAnswers(t *testing.T) {
	at := func(answered, ended time.Duration, bytes uint64, polled time.Duration, more ...inspect.Link) survey {
		p := inspect.Process{ID: "a", PID: 1, At: time.Unix(0, 0).Add(answered), Polling: int64(polled)}
		p.Connections = []inspect.Connection{{Number: 1, Local: "c"}}
		p.Connections[0].BytesWritten = bytes
		p.Links = append([]inspect.Link{{Local: "l", Info: link.Info{SendQueue: 64, Outstanding: 3}}}, more...)
		p.Links[0].BytesReceived = bytes
		return survey{at: time.Unix(0, 0).Add(ended), all: []inspect.Process{p}}
	}
	before := at(0, 4*time.Second, 0, 0)
	after := at(4100*time.Millisecond, 5*time.Second, 4100<<10, 2050*time.Millisecond, inspect.Link{Local: "new"})
	require.Equal(t, []string{"1000KiB", "0B"}, connectionTable(after, before, true)[1][9:11])
	links := linkTable(after, before, true)
	require.Equal(t, "3/64", links[1][9])
	require.Equal(t, []string{"0B", "1000KiB"}, links[1][12:14])
	require.Equal(t, []string{"-", "-"}, links[2][12:14])
	summary, rows := busiest(after, before, map[int]time.Duration{1: 3 * time.Second}, map[int]time.Duration{1: time.Second})
	require.Equal(t, []string{"SENT/s", "RECEIVED/s", "CPU", "POLLING"}, rows[0][:4])
	require.Equal(t, []string{"1000KiB", "0B", "200%", "50%"}, rows[1][:4])
	require.Contains(t, summary, ": 1000KiB/s sent")
}

// What another user's process tells may not move root's cursor.
func TestNothingThatIsToldReachesTheTerminalAsItIs(t *testing.T) {
	v := survey{at: time.Now(), all: []inspect.Process{{
		ID: "\u009b", PID: 1, Program: "中文\x1b[2Jx\u0301\x7f\n" + strings.Repeat("y", 1000),
		Links: []inspect.Link{{Info: link.Info{Network: "\x1b"}, Local: "a\tb", Remote: "\r", PathLocal: "\x07:1"}},
		Connections: []inspect.Connection{{Carrier: "\x1b", Local: "\u009b", Remote: "\r", PassedOver: []inspect.PassedOver{{Network: "\x1b", Code: "\n"}},
			StreamState: link.StreamState{State: "\x1b", Unread: -1, Unsent: -1}}},
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

// One that is stopped would be waited for, though it is none that is asked for.
func TestSsAsksNoOtherProcesses(t *testing.T) {
	p := start(t, "proxy", "--listen", "shm://127.0.0.1:0", "--to", "tcp://"+serve(t, echo))
	c, err := ringnet.Dial("shm", p.address(0))
	require.NoError(t, err)
	defer c.Close()
	stopped := fmt.Sprint(p.cmd.Process.Pid)
	require.Eventually(t, func() bool {
		out, _, _ := ringnetCommand(t, "ss", "--process", stopped)
		return strings.Count(out, "\n") == 2
	}, patience, 10*time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	defer func() { require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT)) }()
	for _, other := range []string{"no-program-has-this-name", fmt.Sprint(1 << 30)} {
		out, errs, status := ringnetCommand(t, "ss", "--process", other)
		require.Zero(t, status, errs)
		require.Empty(t, errs)
		require.Equal(t, 1, strings.Count(out, "\n"), out)
	}
	out, errs, status := ringnetCommand(t, "ss", "--process", stopped)
	require.Equal(t, failed, status, "%s%s", out, errs)
	require.Contains(t, errs, "process "+stopped+" has not answered")
}

// Who sees nothing is told that there is something.
func TestSsSaysThatProcessesOfOthersAreNotShown(t *testing.T) {
	requireRoot(t)
	client, _ := twoEnds(t)
	of := fmt.Sprint(os.Getpid())
	for _, flags := range []string{"", "--json", "--process=" + of} {
		ss := asUser(t, commandProcess(append([]string{"ss"}, strings.Fields(flags)...)...))
		errs := new(strings.Builder)
		ss.Stderr = errs
		out, err := ss.Output()
		require.NoError(t, err, errs)
		require.NotContains(t, string(out), client.LocalAddr().String())
		require.Regexp(t, regexp.MustCompile(`^ringnet: (1 process of another user is|\d+ processes of other users are) not shown\n$`), errs.String())
	}
	ss := asUser(t, commandProcess("ss", "--process=no-program-has-this-name"))
	out, err := ss.CombinedOutput()
	require.NoError(t, err)
	require.NotContains(t, string(out), "not shown")
}
