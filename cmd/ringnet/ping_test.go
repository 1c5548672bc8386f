package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPingSpread(t *testing.T) {
	require.Nil(t, newSpread(nil))
	require.Equal(t, &spread{Count: 1, Min: 5, Median: 5, P90: 5, P99: 5, Max: 5}, newSpread([]time.Duration{5 * time.Microsecond}))
	var times []time.Duration
	for i := range 201 {
		times = append(times, time.Duration(201-i)*time.Microsecond)
	}
	s := newSpread(times)
	require.Equal(t, []float64{1, 101, 201}, []float64{s.Min, s.Median, s.Max})
	require.InDelta(t, 181, s.P90, 1)
	require.InDelta(t, 199, s.P99, 1)
	require.InDelta(t, 101, (s.MedianLow+s.MedianHigh)/2, 1)
	require.Less(t, s.MedianHigh-s.MedianLow, 40.0)
	require.Equal(t, 201*time.Microsecond, times[0], "the times keep their order")
}

// pinged runs ringnet ping and returns its results by network.
func pinged(t *testing.T, args ...string) map[string]pingResult {
	t.Helper()
	out, err := commandProcess(append([]string{"ping", "--json"}, args...)...).Output()
	require.NoError(t, err)
	var list []pingResult
	require.NoError(t, json.Unmarshal(out, &list))
	results := make(map[string]pingResult)
	for _, r := range list {
		results[r.Network] = r
	}
	return results
}

func requireRoundTrips(t *testing.T, r pingResult, n int) {
	t.Helper()
	require.Empty(t, r.Error+r.NoAnswer+r.Ended)
	require.Positive(t, r.FirstSetUp)
	require.NotNil(t, r.SetUp)
	require.NotNil(t, r.RoundTrip)
	require.Equal(t, n, r.RoundTrip.Count)
	require.LessOrEqual(t, r.RoundTrip.Median, r.RoundTrip.P99)
}

func TestPingMeasuresOverEachNetwork(t *testing.T) {
	requireShm(t)
	address := start(t, "ping", "--listen", "auto://127.0.0.1:0").logged("answers", 0)["address"].(string)
	for _, size := range []string{"1", "3000000"} {
		results := pinged(t, "-n", "20", "-s", size, address)
		requireRoundTrips(t, results["shm"], 20)
		requireRoundTrips(t, results["tcp"], 20)
		require.NotEmpty(t, results["rdma"].Error, "of an address of no RDMA device")
	}
	out, err := commandProcess("ping", "-n", "20", address).Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^ *shm +[\d.]+ [µm]s( +[\d.]+ [nµm]?s( ±\d+%)?){7}$`, string(out))
	require.Regexp(t, `(?m)^not over rdma: `, string(out))
}

func TestPingOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		address := start(t, "ping", "--listen", "auto://"+softroceAddress()+":0").logged("answers", 0)["address"].(string)
		requireRoundTrips(t, pinged(t, "-n", "20", "--networks", "rdma", address)["rdma"], 20)
	})
}

func TestPingOfWhatDoesNotAnswer(t *testing.T) {
	silent := serve(t, echo)
	r := pinged(t, "--networks", "tcp", silent)["tcp"]
	require.Positive(t, r.FirstSetUp)
	require.Contains(t, r.NoAnswer, "no greeting: ")
	require.Contains(t, r.NoAnswer, "want ringnet ping --listen there")

	talkative := serve(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("220 mail.example ESMTP\r\n")) })
	require.Contains(t, pinged(t, "--networks", "tcp", talkative)["tcp"].NoAnswer, `another greeting: "220 mail`)
}

func TestPingFailsWhereNobodyListens(t *testing.T) {
	out, err := commandProcess("ping", freeAddress(t)).CombinedOutput()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit))
	require.Equal(t, failed, exit.ExitCode())
	require.Contains(t, string(out), "cannot be reached")
	require.Contains(t, string(out), "not over tcp: dial tcp")
	require.NotContains(t, string(out), "median", "a table of nothing")
}

func TestPingSaysWhatIsWrongWithItsFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "want HOST:PORT to connect to, or --listen",
		"a:1 --listen auto://:1":         "want HOST:PORT to connect to, or --listen",
		"localhost":                      "want HOST:PORT",
		"a:1 -n 0":                       "want positive values",
		"a:1 -s 1073741825":              "--size=1073741825: want 1073741824 at most",
		"a:1 --networks ib":              "must be one of",
		"--listen :7471":                 "want NETWORK://HOST:PORT",
		"--listen unix:///tmp/s":         "not unix",
		"--datagram --listen auto4://:1": "wants auto, shm, rdma or tcp",
	} {
		out, err := commandProcess(append([]string{"ping"}, strings.Fields(args)...)...).CombinedOutput()
		exit := new(exec.ExitError)
		require.ErrorAs(t, err, &exit, args)
		require.Equal(t, misuse, exit.ExitCode(), args)
		require.Contains(t, string(out), want)
	}
}

// interrupted starts a ping over a network, of an hour or so, and calls stop when it has measured
// something: if it had not, another runs for longer. The output has to have what was measured.
func interrupted(t *testing.T, network string, stop func(ping *exec.Cmd, server *service)) (out string, err error) {
	t.Helper()
	measured := regexp.MustCompile(`(?m)^ *` + network + ` +[\d.]+ [µm]?s( +[\d.]+ [nµm]?s( ±\d+%)?){7}$`)
	for pause := shortPause; pause < patience && !measured.MatchString(out); pause *= 2 {
		out, err = interruptedAfter(t, pause, network, stop)
	}
	require.Regexp(t, measured, out)
	return out, err
}

func interruptedAfter(t *testing.T, pause time.Duration, network string, stop func(ping *exec.Cmd, server *service)) (out string, err error) {
	t.Helper()
	server := start(t, "ping", "--listen", "auto://127.0.0.1:0")
	ping := commandProcess("ping", "-n", "1000000000", "--networks", network, server.logged("answers", 0)["address"].(string))
	text := new(strings.Builder)
	ping.Stdout, ping.Stderr = text, text
	require.NoError(t, ping.Start())
	time.Sleep(pause)
	stop(ping, server)
	ended := make(chan error, 1)
	go func() { ended <- ping.Wait() }()
	select {
	case err = <-ended:
	case <-time.After(patience):
		_ = ping.Process.Kill()
		<-ended
		t.Fatal("ping did not end")
	}
	return text.String(), err
}

func TestPingThatIsInterruptedTellsWhatItHasMeasured(t *testing.T) {
	out, err := interrupted(t, "tcp", func(ping *exec.Cmd, _ *service) { _ = ping.Process.Signal(os.Interrupt) })
	require.NoError(t, err, out)
	require.NotContains(t, out, "ended")
}

func TestPingFailsWhenTheListenerIsKilled(t *testing.T) {
	for _, network := range []string{"tcp", "shm"} {
		t.Run(network, func(t *testing.T) {
			if network == "shm" {
				requireShm(t)
			}
			out, err := interrupted(t, network, func(_ *exec.Cmd, server *service) {
				require.NoError(t, server.cmd.Process.Kill())
				_ = server.wait()
			})
			exit := new(exec.ExitError)
			require.ErrorAs(t, err, &exit, out)
			require.Equal(t, failed, exit.ExitCode(), out)
			require.Contains(t, out, "round trips over "+network+" ended: ")
		})
	}
}
