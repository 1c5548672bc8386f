package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/inspect"
)

// A process that answers late has the look end late. The others, which have answered at once, have moved bytes
// until the next look for longer than the time between the ends of the two.
func TestRatesAreByTheTimesOfTheAnswers(t *testing.T) {
	at := func(answered, ended time.Duration, bytes uint64, polled time.Duration) survey {
		p := inspect.Process{ID: "a", PID: 1, At: time.Unix(0, 0).Add(answered), Polling: int64(polled)}
		p.Connections = []inspect.Connection{{Number: 1, Local: "c", BytesWritten: bytes}}
		p.Links = []inspect.Link{{Local: "l", BytesReceived: bytes}}
		return survey{at: time.Unix(0, 0).Add(ended), all: []inspect.Process{p}}
	}
	before, after := at(0, 4*time.Second, 0, 0), at(4100*time.Millisecond, 4101*time.Millisecond, 4100<<10, 2050*time.Millisecond)
	require.Equal(t, []string{"1000KiB", "0B"}, connectionTable(after, before, true)[1][9:11])
	require.Equal(t, []string{"0B", "1000KiB"}, linkTable(after, before, true)[1][12:14])
	summary, rows := busiest(after, before, nil, nil)
	require.Equal(t, []string{"1000KiB", "0B", "-", "50%"}, rows[1][:4])
	require.Contains(t, summary, ": 1000KiB/s sent")
}

func TestProcessesTellWhenTheyAnswer(t *testing.T) {
	twoEnds(t)
	before := time.Now()
	out, errs, status := ringnetCommand(t, "--json", "ss", "--process", fmt.Sprint(os.Getpid()))
	require.Zero(t, status, errs)
	var all []inspect.Process
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	require.Len(t, all, 1)
	require.False(t, all[0].At.Before(before.Round(0)), all[0].At)
	require.False(t, all[0].At.After(time.Now()), all[0].At)
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
	_, errs, status := ringnetCommand(t, "ss", "--process", stopped)
	require.Equal(t, failed, status)
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
