package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// perfServing starts ringnet perf --listen and returns its address.
func perfServing(t *testing.T, host string) string {
	t.Helper()
	return start(t, "perf", "--listen", host+":0").logged("serves", 0)["address"].(string)
}

// little has as few measurements as there can be.
var little = []string{"--sizes", "64,3KiB", "--connections", "1,3", "--rounds", "2", "--slice", "1ms"}

// measured runs ringnet perf and returns its report.
func measured(t *testing.T, args ...string) *perfReport {
	t.Helper()
	out, err := commandProcess(append([]string{"perf", "--json"}, append(args, little...)...)...).Output()
	require.NoError(t, err, "%s", out)
	r := new(perfReport)
	require.NoError(t, json.Unmarshal(out, r))
	return r
}

// requireMeasured requires that everything was measured over these networks, and over no
// other.
func requireMeasured(t *testing.T, r *perfReport, networks ...string) {
	t.Helper()
	results := 0
	var client, server float64
	for _, network := range networks {
		for workload, sizes := range map[string][]int{"connect": {0}, "ping-pong": {64, 3072}, "stream": {64, 3072}} {
			for _, size := range sizes {
				for _, conns := range []int{1, 3} {
					x := r.Find(report.Cell{Peer: network, Workload: workload, Size: size, Conns: conns})
					require.NotNil(t, x, "%+v", r.Peers)
					require.Equal(t, 2, x.Median.Rounds, x.Error)
					require.Positive(t, x.Median.PerSecond.Median)
					require.Equal(t, workload != "stream", x.Median.P50.Median > 0)
					require.LessOrEqual(t, x.Median.P50.Median, x.Median.P99.Median)
					require.Equal(t, network != "tcp" && slices.Contains(networks, "tcp"), x.ByBase.Median > 0)
					for _, s := range x.Rounds {
						client += s.CPU - s.ServerCPU
						server += s.ServerCPU
					}
					results++
				}
			}
		}
	}
	require.Len(t, r.Results, results)
	require.NotEmpty(t, r.Server.CPU)
	require.Positive(t, client)
	require.Positive(t, server)
}

func TestPerfMeasuresWhatAutoOffersBesideTCP(t *testing.T) {
	requireShm(t)
	address := perfServing(t, "127.0.0.1")
	requireMeasured(t, measured(t, address), "shm", "tcp")

	r := measured(t, "--networks", "rdma,tcp", address) // and one client after the other
	requireMeasured(t, r, "tcp")
	require.Equal(t, "rdma", r.Peers[0].Key)
	require.NotEmpty(t, r.Peers[0].Unavailable, "of an address of no RDMA device")
}

func TestPerfOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		requireMeasured(t, measured(t, "--networks", "rdma,tcp", perfServing(t, softroceAddress())), "rdma", "tcp")
	})
}

func TestPerfTable(t *testing.T) {
	requireShm(t)
	cmd := commandProcess("perf", "--networks", "shm,rdma,tcp", "--sizes", "64,4KiB", "--connections", "1,2", "--rounds", "6", "--slice", "1ms", perfServing(t, "127.0.0.1"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Empty(t, errs.String(), "progress is for terminals")
	require.Regexp(t, `(?m)^server: .+ CPUs, `, string(out))
	require.Regexp(t, `(?m)^2\d+-\d\d-\d\d \d\d:\d\d UTC; load average \d.* before and \d.* after$`, string(out))
	require.Regexp(t, `(?m)^not over rdma: .+`, string(out))
	interval := `(±\d+%|\(\S+ \S+ to \S+ \S+\))`
	require.Contains(t, string(out), ", and the interval of 95 % confidence for the median, ")
	require.Regexp(t, `(?m)^2 +shm +[\d.]+ [nµm]?s `+interval+` .* × `+interval+`$`, string(out), "set-up")
	require.Regexp(t, `(?m)^64 B +1 +shm +[\d.]+ [nµm]?s `+interval+` .* × `+interval+`$`, string(out))
	require.Regexp(t, `(?m)^4.0 KiB +2 +tcp +[\d.]+ [kMG]?B/s `+interval+` `, string(out))
}

// client is one that the test drives by hand.
func client(t *testing.T, address, name string) (*net.TCPConn, perfWelcome) {
	t.Helper()
	conn := dial(t, address)
	_, err := fmt.Fprint(conn, perfHello, name, "\n")
	require.NoError(t, err)
	var w perfWelcome
	require.NoError(t, json.NewDecoder(io.LimitReader(conn, maxPerfLine)).Decode(&w))
	return conn, w
}

func TestPerfServesOneClientAtATime(t *testing.T) {
	server := start(t, "perf", "--listen", "127.0.0.1:0")
	address := server.logged("serves", 0)["address"].(string)
	first, w := client(t, address, "one")
	require.Empty(t, w.Error)
	second, w := client(t, address, "one")
	require.Empty(t, w.Error)
	_, w = client(t, address, "another")
	require.Contains(t, w.Error, "busy with 127.0.0.1:")

	// When the server closes its end, it has counted that.
	require.NoError(t, first.CloseWrite())
	_, err := first.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	_, w = client(t, address, "another")
	require.Empty(t, w.Error)
	require.NoError(t, second.Close())
}

// requireEnded reads until the server ends the connection.
func requireEnded(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestPerfServerIgnoresNonsense(t *testing.T) {
	address := perfServing(t, "127.0.0.1")
	for _, said := range []string{"GET / HTTP/1.1\r\n\r\n", "\n", "ringnet perf 1 x\n", strings.Repeat("x", 3*maxPerfLine)} {
		conn := dial(t, address)
		_, err := conn.Write([]byte(said))
		require.NoError(t, err)
		requireEnded(t, conn)
	}
	large, _ := client(t, address, "one")
	require.NoError(t, workload.Request(large, workload.Echo, maxPerfSize+1, 1))
	requireEnded(t, large)
	requireMeasured(t, measured(t, "--networks", "tcp", address), "tcp")
}

func TestPerfStreamsForATime(t *testing.T) {
	address := perfServing(t, "127.0.0.1")
	for flags, want := range map[string][2]bool{"": {true, false}, "--reverse": {false, true}, "--both --connections 2": {true, true}} {
		args := append([]string{"perf", "--json", address, "-t", "1200ms", "--networks", "tcp", "--sizes", "3KiB"}, strings.Fields(flags)...)
		out, err := commandProcess(args...).Output()
		require.NoError(t, err, "%s", out)
		var parts []perfInterval
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			var i perfInterval
			require.NoError(t, d.Decode(&i))
			require.Equal(t, "tcp", i.Network)
			parts = append(parts, i)
		}
		require.GreaterOrEqual(t, len(parts), 2, "a second, and the total")
		var sum perfInterval
		for i, part := range parts {
			require.Equal(t, i == len(parts)-1, part.Total)
			require.Less(t, part.From, part.To)
			if !part.Total {
				sum.Sent, sum.Received = sum.Sent+part.Sent, sum.Received+part.Received
			}
		}
		total := parts[len(parts)-1]
		require.Equal(t, want, [2]bool{total.Sent > 0, total.Received > 0})
		require.GreaterOrEqual(t, total.To, 1.2)
		require.GreaterOrEqual(t, total.Sent, sum.Sent)
		require.GreaterOrEqual(t, total.Received, sum.Received)
	}
}

// Sizes are named exactly, and where there are too few rounds, no interval is announced.
func TestPerfSaysWhyAutoDoesNoBetter(t *testing.T) {
	server := commandProcess("--json", "perf", "--listen", "127.0.0.1:0")
	server.Env = append(server.Env, "RINGNET_NETWORKS=tcp")
	address := startProcess(t, server).logged("serves", 0)["address"].(string)
	out, err := commandProcess("perf", address, "--networks=auto", "--sizes=64KB", "--connections=1", "--rounds=2", "--slice=1ms").Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^auto passes over \w+ \([a-z-]+\): .+$`, string(out))
	require.Contains(t, string(out), "medians of 2 rounds of 1ms each\n")
	require.NotRegexp(t, `interval|±`, string(out))
	require.Regexp(t, `(?m)^64 kB +1 +tcp +`, string(out))
}

func TestPerfOfAStreamSaysWhatIsPassedOver(t *testing.T) {
	server := commandProcess("--json", "perf", "--listen", "127.0.0.1:0")
	server.Env = append(server.Env, "RINGNET_NETWORKS=tcp")
	address := startProcess(t, server).logged("serves", 0)["address"].(string)
	out, err := commandProcess("perf", address, "-t", "10ms").Output()
	require.NoError(t, err)
	require.Regexp(t, `^auto passes over \w+ \([a-z-]+\): .+\n`, string(out))
	out, err = commandProcess("--json", "perf", address, "-t", "10ms").Output()
	require.NoError(t, err)
	var total perfInterval
	require.NoError(t, json.Unmarshal(out, &total))
	require.NotEmpty(t, total.PassedOver)
}

// Who ends perf -t has what was measured, as of iperf3.
func TestPerfStreamsUntilItIsInterrupted(t *testing.T) {
	for _, network := range []string{"auto", "tcp"} {
		perf := commandProcess("perf", perfServing(t, "127.0.0.1"), "-t", "1h", "--networks", network)
		errs := new(strings.Builder)
		perf.Stderr = errs
		out, err := perf.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, perf.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan())
		for strings.HasPrefix(lines.Text(), "auto passes over ") {
			require.True(t, lines.Scan())
		}
		require.Regexp(t, ` [kMGT]?B/s sent `, lines.Text())
		require.NoError(t, perf.Process.Signal(os.Interrupt))
		last := ""
		for lines.Scan() {
			last = lines.Text()
		}
		require.Regexp(t, `^  0\.0 to +\d+\.\d s  (shm|rdma|tcp) .*/s sent +0 B/s received, in all$`, last)
		require.NoError(t, perf.Wait(), errs)
		require.Empty(t, errs.String())
	}
}

// Whoever answers at the address may be anybody.
func TestPerfShowsNothingOfAServersAsItIs(t *testing.T) {
	const words = "\u009b2J\u202e\x1b[2J"
	messages := workload.MessageServer{MaxSize: maxPerfSize, Own: map[int]func(net.Conn) error{perfUsage: tellUsage}}
	machine, err := json.Marshal(perfWelcome{Machine: report.Machine{CPU: words}})
	require.NoError(t, err)
	friendly := serve(t, func(c *net.TCPConn) {
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = fmt.Fprintf(c, "%s\n", machine)
		_ = messages.Serve(c)
	})
	refusal, err := json.Marshal(perfWelcome{Error: words})
	require.NoError(t, err)
	refusing := serve(t, func(c *net.TCPConn) {
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = fmt.Fprintf(c, "%s\n", refusal)
	})
	r := measured(t, friendly, "--networks", "tcp")
	require.Equal(t, words, r.Server.CPU)
	for _, address := range []string{friendly, refusing} {
		for _, format := range []string{"--json", ""} {
			args := append(strings.Fields("perf --networks tcp "+address+" "+format), little...)
			out, _ := commandProcess(args...).CombinedOutput()
			require.NotEmpty(t, out)
			require.NotRegexp(t, `[^\PC\n\t]`, string(out))
		}
	}
}

// What a client has left is not in the way of the next.
func TestPerfEndsAClientsConnectionsWithItsFirst(t *testing.T) {
	address := perfServing(t, "127.0.0.1")
	enter := func() net.Conn {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		write(t, c, perfHello+"one\n")
		_, err = bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		return c
	}
	first, other := enter(), enter()
	require.NoError(t, workload.Request(other, workload.Echo, maxPerfSize, 1))
	require.NoError(t, first.Close())
	require.NoError(t, other.SetDeadline(time.Now().Add(patience)))
	_, err := io.Copy(io.Discard, other)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}
