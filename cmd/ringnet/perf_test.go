package main

import (
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

// perfServing starts ringnet perf --listen and returns its address.
func perfServing(t *testing.T, network, host string, args ...string) string {
	t.Helper()
	s := start(t, append([]string{"perf", "--listen", network + "://" + host + ":0"}, args...)...)
	return s.logged("serves", 0)["address"].(string)
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
	requireMeasuredBeside(t, r, "tcp", networks...)
}

// requireMeasuredBeside requires them beside this baseline, if that is among them.
func requireMeasuredBeside(t *testing.T, r *perfReport, baseline string, networks ...string) {
	t.Helper()
	var results, beside int
	for _, network := range networks {
		for _, workload := range []string{"ping-pong", "stream"} {
			for _, size := range []int{64, 3072} {
				for _, conns := range []int{1, 3} {
					x := r.Find(perf.Cell{Peer: network, Workload: workload, Size: size, Conns: conns})
					require.NotNil(t, x, "%+v", r.Peers)
					require.Equal(t, 2, x.Median.Rounds, x.Error)
					require.Positive(t, x.Median.PerSecond.Median)
					require.Equal(t, workload == "ping-pong", x.Median.P50.Median > 0)
					require.LessOrEqual(t, x.Median.P50.Median, x.Median.P99.Median)
					results++
					if network != baseline {
						beside++
					}
				}
			}
		}
	}
	require.Len(t, r.Results, results)
	if slices.Contains(networks, baseline) {
		require.Len(t, r.BesideTCP, beside)
	}
	require.NotEmpty(t, r.Server.CPU)
}

// requireCPU requires the processor time of both ends.
func requireCPU(t *testing.T, r *perfReport) {
	t.Helper()
	var client, server float64
	for _, x := range r.Results {
		for _, s := range x.Rounds {
			client += s.CPU - s.ServerCPU
			server += s.ServerCPU
		}
	}
	require.Positive(t, client)
	require.Positive(t, server)
}

func TestPerfMeasuresWhatAutoOffersBesideTCP(t *testing.T) {
	requireShm(t)
	address := perfServing(t, "auto", "127.0.0.1")
	r := measured(t, address)
	requireMeasured(t, r, "shm", "tcp")
	requireCPU(t, r)
	require.Equal(t, "tcp", r.Peers[1].Key, "the others come first")
	for _, x := range r.BesideTCP {
		require.Positive(t, x.Rate.Median)
	}

	r = measured(t, "--networks", "tcp,rdma", address) // and one client after the other
	requireMeasured(t, r, "tcp")
	require.Equal(t, "rdma", r.Peers[0].Key)
	require.NotEmpty(t, r.Peers[0].Unavailable, "of an address of no RDMA device")
}

func TestPerfComparesWithNothingWhereNoRoundHasBoth(t *testing.T) {
	sample := perf.Sample{Ops: 1, Bytes: 64, Seconds: 1}
	r := &perfReport{baseline: "tcp"}
	r.Results = []*perf.Result{
		{Cell: perf.Cell{Peer: "shm", Workload: perf.Stream.Key}, Rounds: []*perf.Sample{&sample, nil}},
		{Cell: perf.Cell{Peer: "tcp", Workload: perf.Stream.Key}, Rounds: []*perf.Sample{nil, nil}},
	}
	r.finish()
	require.Empty(t, r.BesideTCP)
}

func TestPerfSaysWhyAutoDoesNoBetter(t *testing.T) {
	address := perfServing(t, "tcp", "127.0.0.1")
	r := measured(t, address)
	requireMeasured(t, r, "tcp")
	require.NotEmpty(t, r.PassedOver)
	require.NotEmpty(t, r.PassedOver[0].Code)
}

func TestPerfOverShmWithoutAuto(t *testing.T) {
	requireShm(t)
	address := perfServing(t, "shm", "127.0.0.1")
	requireMeasured(t, measured(t, "--networks", "shm,tcp", address), "shm", "tcp")
}

// Another program may have the port that shm finds over TCP.
func TestPerfListensAtAPortThatIsFreeOnBoth(t *testing.T) {
	requireShm(t)
	taken := 0
	listen := func(e endpoint.Endpoint) (endpoint.Listener, error) {
		l, err := e.Listen(t.Context(), endpoint.Options{})
		if err == nil && e.Network == "shm" && taken < 2 {
			if other, err := net.Listen("tcp", l.Addr().String()); err == nil {
				t.Cleanup(func() { other.Close() })
			}
			taken++
		}
		return l, err
	}
	for _, address := range []string{"127.0.0.1:0", "127.0.0.1:"} {
		taken = 0
		listeners, err := listenBesideTCP(endpoint.Endpoint{Network: "shm", Address: address}, listen)
		require.NoError(t, err)
		require.Len(t, listeners, 2)
		require.Equal(t, listeners[0].Addr().String(), listeners[1].Addr().String())
		for _, l := range listeners {
			require.NoError(t, l.Close())
		}
	}
	taken = 0
	_, err := listenBesideTCP(endpoint.Endpoint{Network: "shm", Address: freeAddress(t)}, listen)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "this port was asked for")
	require.Equal(t, 1, taken)
}

func TestPerfOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		for _, network := range []string{"rdma", "auto"} {
			r := measured(t, "--networks", "rdma,tcp", perfServing(t, network, softroceAddress()))
			requireMeasured(t, r, "rdma", "tcp")
			requireCPU(t, r)
		}
	})
}

// TestPerfWhereTCPIsBlocked has a server that TCP does not reach.
func TestPerfWhereTCPIsBlocked(t *testing.T) {
	requireShm(t)
	address := serveShmAlone(t)
	r := measured(t, address)
	requireMeasured(t, r, "shm")
	why := make(map[string]string)
	for _, p := range r.Peers {
		why[p.Key] = p.Unavailable
	}
	require.Contains(t, why["tcp"], "connection refused")
	require.Contains(t, why["auto"], "connection refused")
	require.Contains(t, why, "rdma")
}

func TestPerfTable(t *testing.T) {
	requireShm(t)
	address := perfServing(t, "auto", "127.0.0.1")
	dir := filepath.Join(t.TempDir(), "charts")
	cmd := commandProcess("perf", "--networks", "shm,rdma,tcp", "--sizes", "64,4KiB", "--connections", "1,2", "--rounds", "6", "--slice", "1ms", "--svg", dir, address)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Empty(t, errs.String(), "progress is for terminals")
	require.Regexp(t, `(?m)^server: .+ CPUs, `, string(out))
	require.Regexp(t, `(?m)^not over rdma: .+`, string(out))
	require.Regexp(t, `(?m)^64 B +1 +shm +[\d.]+ [nµm]?s ±\S+ .* ×( ±\S+)?$`, string(out))
	require.Regexp(t, `(?m)^4.0 KiB +2 +tcp +[\d.]+ [kMG]?B/s ±\S+ `, string(out))
	for _, name := range []string{"latency-1", "latency-2", "rate-1", "rate-2", "round-trips-64", "round-trips-4096", "streams-64", "streams-4096"} {
		text, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		require.NoError(t, err)
		require.Contains(t, string(out), "\n  "+filepath.Join(dir, name+".svg")+"\n")
		require.NoError(t, xml.Unmarshal(text, new(struct{})), name)
		require.Contains(t, string(text), ">shm</text>")
		require.Contains(t, string(text), ">tcp</text>")
	}
}

// failsWith requires that the command fails with this status and text.
func failsWith(t *testing.T, status int, want string, args ...string) {
	t.Helper()
	out, err := commandProcess(append([]string{"perf"}, args...)...).CombinedOutput()
	exit := new(exec.ExitError)
	require.True(t, errors.As(err, &exit), "%s", out)
	require.Equal(t, status, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), want)
}

func TestPerfOfWhatIsNoPerfServer(t *testing.T) {
	failsWith(t, failed, "cannot be reached: over tcp: dial tcp", freeAddress(t))
	failsWith(t, failed, "want ringnet perf --listen there, which would say so: ", "--networks", "tcp", "--timeout", "5s", serve(t, echo))
	says := func(text string) string {
		return serve(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte(text))
			_, _ = io.Copy(io.Discard, c)
		})
	}
	failsWith(t, failed, `does not say "220 mail.example ESMTP`, says("220 mail.example ESMTP\r\n"))
	failsWith(t, failed, "another version of ringnet perf is there, 7, and this is 1", says("ringnet perf 7\n"))
	failsWith(t, failed, "an answer that is none", says(perfGreeting+"what?\n"))
	failsWith(t, failed, "does not say", "--networks", "tcp", says(strings.Repeat("x", 2*maxPerfLine)))
}

func TestPerfSaysWhatTheServerDoesNotAllow(t *testing.T) {
	address := perfServing(t, "tcp", "127.0.0.1", "--max-size", "1KiB", "--max-connections", "2", "--max-time", "2s")
	failsWith(t, failed, "allows messages of 1.0 KiB at most, not of 4.0 KiB: see its --max-size", "--sizes", "64,4KiB", address)
	failsWith(t, failed, "allows 2 connections at most, not 3: see its --max-connections", "--sizes", "64", "--connections", "3", address)
	failsWith(t, failed, "allows 2s: see its --max-time", "--sizes", "64", "--connections", "2", "--slice", "5s", address)
}

// visitor is a client that the test drives by hand.
func visitor(t *testing.T, address, visit string) (*net.TCPConn, perfWelcome) {
	t.Helper()
	conn := dial(t, address)
	var version int
	_, err := fmt.Fscanf(conn, perfGreetingName+"%d\n", &version)
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(conn).Encode(perfHello{visit}))
	var w perfWelcome
	require.NoError(t, json.NewDecoder(io.LimitReader(conn, maxPerfLine)).Decode(&w))
	return conn, w
}

func TestPerfServesOneClientAtATime(t *testing.T) {
	address := perfServing(t, "tcp", "127.0.0.1")
	conn, w := visitor(t, address, "")
	require.Empty(t, w.Error)
	failsWith(t, failed, "busy with 127.0.0.1:", address)
	_, other := visitor(t, address, "another's")
	require.Contains(t, other.Error, "this visit has ended")
	data, w := visitor(t, address, w.Visit)
	require.Empty(t, w.Error)

	require.NoError(t, conn.CloseWrite())
	_, err := conn.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	_, err = data.Read(make([]byte, 1))
	require.Error(t, err, "the visit has ended for all its connections")
	require.False(t, os.IsTimeout(err), "the server has not ended it")
	_, w = visitor(t, address, w.Visit)
	require.Contains(t, w.Error, "this visit has ended")
	_, w = visitor(t, address, "")
	require.Empty(t, w.Error)
}

func TestPerfServerHoldsItsBounds(t *testing.T) {
	address := perfServing(t, "tcp", "127.0.0.1", "--max-size", "1KiB", "--max-connections", "1", "--max-time", "3s")
	control, w := visitor(t, address, "")
	visit := w.Visit
	data, w := visitor(t, address, visit)
	require.Empty(t, w.Error)

	// A message that is too large ends its connection, and no other.
	require.NoError(t, perf.Request(data, perf.Echo, 1025, 1))
	_, err := data.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, perf.Request(control, perfUsage, 0, 0))
	var used perf.Usage
	require.NoError(t, binary.Read(control, binary.LittleEndian, &used))
	require.Positive(t, used.Mallocs)

	// A client has one connection at a time, and when its time is over it has none.
	data, w = visitor(t, address, visit)
	require.Empty(t, w.Error)
	_, w = visitor(t, address, visit)
	require.NotEmpty(t, w.Error)
	for _, c := range []net.Conn{data, control} {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, os.IsTimeout(err), "the server has not ended it")
	}
}

func TestPerfServerIgnoresNonsense(t *testing.T) {
	address := perfServing(t, "tcp", "127.0.0.1")
	for _, said := range []string{"GET / HTTP/1.1\r\n\r\n", "\n", "{\"visit\":7}\n", strings.Repeat("x", 3*maxPerfLine), "{}\n" + strings.Repeat("\xff", 100)} {
		conn := dial(t, address)
		_, err := conn.Write([]byte(said))
		require.NoError(t, err)
		_ = conn.CloseWrite() // the server may have ended it already
		_, _ = io.Copy(io.Discard, conn)
	}
	requireMeasured(t, measured(t, "--networks", "tcp", address), "tcp")
}

// TestPerfServerIsNotHeldUpByThoseWhoSayNothing has more clients connect and send nothing
// than the server has handshakes.
func TestPerfServerIsNotHeldUpByThoseWhoSayNothing(t *testing.T) {
	s := start(t, "perf", "--listen", "tcp://127.0.0.1:0")
	address := s.logged("serves", 0)["address"].(string)
	var silent []net.Conn
	for range perfHandshakes + 1 {
		silent = append(silent, dial(t, address))
	}
	require.Equal(t, "too many handshakes at once", s.logged("refused", 0)["error"])
	for _, c := range silent {
		require.NoError(t, c.Close())
	}
	require.Contains(t, s.logged("refused", perfHandshakes)["error"], "no handshake: ")
	requireMeasured(t, measured(t, "--networks", "tcp", address), "tcp")
}

func TestPerfSaysWhatIsWrongWithItsFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "want HOST:PORT to connect to, or --listen",
		"a:1 --listen auto://:1":          "want HOST:PORT to connect to, or --listen",
		"localhost":                       "want HOST:PORT",
		"a:1 --rounds 0":                  "want positive values",
		"a:1 --connections 0":             "want positive values",
		"a:1 --slice 11s":                 "--slice wants 10s at most",
		"a:1 --sizes 0":                   "want a size from 1 to 1GiB",
		"a:1 --sizes many":                "want a size from 1 to 1GiB",
		"a:1 --networks ib":               "must be one of",
		"--listen :7473":                  "want NETWORK://HOST:PORT",
		"--listen unix:///tmp/s":          "not unix",
		"--listen tcp://:1 --max-time 0s": "want positive values",
	} {
		failsWith(t, misuse, want, strings.Fields(args)...)
	}
}

// serveShmAlone starts a server of ringnet perf over shm, without TCP beside it, until the
// end of the test.
func serveShmAlone(t *testing.T) string {
	t.Helper()
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	server := (&perfCommand{MaxSize: 1 << 20, MaxConnections: 3, MaxTime: time.Minute}).newServer(slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- acceptAll(t.Context(), l, server.log, server.serve) }()
	t.Cleanup(func() { require.NoError(t, <-done) })
	return l.Addr().String()
}
