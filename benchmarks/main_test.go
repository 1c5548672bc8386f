package main

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// little is a short round of little, whose figures mean nothing.
var little = []string{"-rounds", "1", "-slice", "5ms", "-sizes", "64,65536", "-conns", "1,2"}

// runLittle runs the program with little and more flags.
func runLittle(t *testing.T, program string, more ...string) string {
	t.Helper()
	out, err := exec.Command(program, append(little, more...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// build makes the program, which starts itself as its server.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "benchmarks")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

func TestQuickRunOnThisHostMeasuresEverything(t *testing.T) {
	t.Parallel()
	program, dir := build(t), t.TempDir()
	runLittle(t, program, "-idle", "20", "-out", dir)
	r := reportIn(t, dir)

	for _, p := range r.Peers {
		assert.Empty(t, p.Unavailable, p.Name)
		peer, err := findPeer(p.Key)
		require.NoError(t, err)
		for _, w := range benchmarks {
			if w.conns == nil {
				continue // it wants a card
			}
			for _, size := range sizesOf(w) {
				for _, conns := range []int{1, 2} {
					if peer.does(w, conns) {
						checkResult(t, r, report.Cell{Peer: p.Key, Workload: w.Key, Size: size, Conns: conns})
					}
				}
			}
		}
	}
	require.Len(t, r.Peers, 3, "shm, TCP, Unix sockets")
	require.Len(t, r.Idle, 3, "shm, TCP, Unix sockets")
	for _, x := range r.Idle {
		assert.Empty(t, x.Error)
		assert.Positive(t, x.Seconds, x.Peer)
		assert.Positive(t, x.Memory, x.Peer)
	}
	for _, name := range []string{"latency-1.svg", "latency-2.svg", "rate-1.svg", "rate-2.svg"} {
		assert.FileExists(t, filepath.Join(dir, name))
	}
}

func reportIn(t *testing.T, dir string) *Report {
	t.Helper()
	r := new(Report)
	require.NoError(t, report.ReadJSON(filepath.Join(dir, "results.json"), r))
	return r
}

func sizesOf(w *benchmark) []int {
	if w.Sized {
		return []int{64, 65536}
	}
	return []int{0}
}

func checkResult(t *testing.T, r *Report, c report.Cell) {
	t.Helper()
	x := r.Find(c)
	if !assert.NotNil(t, x, "%v", c) {
		return
	}
	assert.Empty(t, x.Error, "%v", c)
	require.Len(t, x.Rounds, 1)
	require.NotNil(t, x.Rounds[0], "%v", c)
	assert.Positive(t, x.Median.PerSecond.Median, "%v", c)
	assert.NotNil(t, x.Rounds[0].Allocs, "%v", c)
	if c.Workload != "stream" { // in a burst each worker has one time
		assert.Positive(t, x.Median.P50.Median, "%v", c)
		assert.GreaterOrEqual(t, x.Median.P99.Median, x.Median.P50.Median, "%v", c)
	}
}

func TestEachCellOnTheCardHasAProcessOfItsOwn(t *testing.T) {
	t.Parallel()
	made, err := exec.Command("make", "-C", "..", "bin/idealcard").CombinedOutput()
	require.NoError(t, err, "%s", made)
	program, dir := build(t), t.TempDir()
	out := runLittle(t, program, "-card", "../bin/idealcard", "-sizes", "64", "-conns", "1", "-out", dir)
	r := reportIn(t, dir)
	cells := 0
	for _, w := range benchmarks {
		for _, key := range strings.Split(cardPeers, ",") {
			p, err := findPeer(key)
			require.NoError(t, err)
			if w.card.conns == nil || p.tools == nil && w.card.ours && p.ours == nil || p.tools != nil && p.tools[w.Key].program == "" {
				continue
			}
			cells++
			size := 0
			if w.Sized {
				size = 64
			}
			x := r.Find(report.Cell{Peer: key, Workload: w.Key, Size: size, Conns: 1})
			require.NotNil(t, x, "%s %s", w.Key, key)
			require.Equal(t, 1, x.Median.Rounds, "%v: %s", x.Cell, x.Error)
			require.Positive(t, x.Median.PerSecond.Median, "%v", x.Cell)
			require.Equal(t, w.Key != "stream" && w.Key != "lent", x.Median.P50.Median > 0, "%v", x.Cell)
		}
	}
	require.Len(t, r.Results, cells)
	require.Regexp(t, `(?m)^connections +over +median +× verbs in C, one process / TCP +p90 `, out)
	require.Regexp(t, `(?m)^1 +ringnet rdma +\S+ [nµm]s +\d[\d.]* / [\d.]+ +\S+ [nµm]?s `, out)
	require.Regexp(t, `(?m)^64 B +1 +ringnet rdma +\S+ [kMG]?/s `, out)
}

func TestBusyMeasuresBesideStrangers(t *testing.T) {
	t.Parallel()
	program, dir := build(t), t.TempDir()
	out := runLittle(t, program, "-out", dir, "-busy", "0,1", "-beside", program, "-peers", "shm,shm-parking,tcp",
		"-workloads", "ping-pong,http", "-sizes", "64", "-conns", "1")
	r := reportIn(t, dir)
	for strangers := range 2 {
		for _, peer := range []string{"shm", "shm@benchmarks", "shm-parking", "tcp"} {
			checkResult(t, r, report.Cell{Peer: peer, Workload: "ping-pong", Size: 64, Conns: 1, Busy: strangers})
			checkResult(t, r, report.Cell{Peer: peer, Workload: "http", Conns: 1, Busy: strangers})
		}
	}
	require.Len(t, r.Results, 2*2*5, "shm-parking@benchmarks, too")
	require.Contains(t, out, " × TCP / benchmarks ")

	out = runLittle(t, program, "-busy", "1", "-slice", "20ms", "-workloads", "stream", "-markdown")
	require.Regexp(t, `(?m)^\| size \| connections \| strangers .* × TCP / Unix socket .* strangers had \|`, out)
	require.Regexp(t, `(?m)^\| 64 KiB \| 2 \| 1 \| ringnet shm \| .* \| \d[\d.]* [mµ]?s/GB \|`, out)
}

// Everything that a process of the program starts has its output for errors.
func TestStrangersEndWhenTheirProcessIsKilled(t *testing.T) {
	t.Parallel()
	c := exec.Command(build(t), "-rounds", "1000000", "-slice", "5ms", "-conns", "1", "-busy", "2", "-workloads", "http", "-peers", "tcp")
	errors, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	lines := bufio.NewScanner(errors)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "tcp beside 2")
	require.NoError(t, c.Process.Kill())
	for lines.Scan() {
	}
	require.NoError(t, lines.Err())
	require.Error(t, c.Wait())
}

// Two rounds in which shm is better than TCP, but in its rate not than Unix sockets and in its p99 not
// beside a stranger.
func TestTailIsBesideTheBetterOfTheOthers(t *testing.T) {
	r := &Report{Report: report.Report{Rounds: 2}}
	for _, key := range []string{"shm", "tcp", "unix", "shm/7"} {
		p, err := findPeer(key)
		require.NoError(t, err)
		if key == "shm/7" {
			p.as = "shm" // as another version is
			t.Cleanup(func() { p.as = "" })
		}
		r.Peers = append(r.Peers, report.Peer{Key: key, Name: p.name})
	}
	add := func(peer string, conns, busy int, rate, p99, p999 float64) {
		x := &report.Result{Cell: report.Cell{Peer: peer, Workload: "http", Conns: conns, Busy: busy}}
		for _, drift := range []float64{1, 4} { // of the machine
			x.Rounds = append(x.Rounds, &report.Sample{
				Ops: int(1e6 * rate * drift), Seconds: 1, P99: p99 * 1e6 / drift, P999: p999 * 1e6 / drift, CPU: 2 * rate * drift,
			})
		}
		r.Results = append(r.Results, x)
	}
	add("shm", 16, 0, 3, 2, 8)
	add("tcp", 16, 0, 1, 4, 16)
	add("unix", 16, 0, 4, 8, 0)
	add("shm/7", 16, 0, 6, 8, 0)
	add("shm", 64, 0, 2, 2, 2)
	add("tcp", 64, 0, 1, 4, 4)
	add("shm", 16, 1, 2, 6, 6)
	add("tcp", 16, 1, 1, 4, 4)
	r.Summarise()
	var out strings.Builder
	r.tail().Markdown(&out)
	require.Equal(t, `
| what | strangers | over | rate, × the better of TCP and Unix socket | p99, × the better of TCP and Unix socket | p99 in ms: itself / TCP / Unix socket | p99.9 in ms: itself / TCP / Unix socket | processor time: itself / TCP / Unix socket |
|---|---|---|---|---|---|---|---|
| http ×16 | 0 | ringnet shm | **0.75 Unix socket** | 0.5 TCP | 1.25 / 2.5 / 5 | 5 / 10 / – | 2 µs / 2 µs / 2 µs |
| http ×16 | 0 | ringnet shm, Links: 7 | 1.5 Unix socket | **2 TCP** | 5 / 2.5 / 5 | – / 10 / – | 2 µs / 2 µs / 2 µs |
| http ×16 | 1 | ringnet shm | 2 TCP | **1.5 TCP** | 3.75 / 2.5 / – | 3.75 / 2.5 / – | 2 µs / 2 µs / – |
| http ×64 | 0 | ringnet shm | 2 TCP | 0.5 TCP | 1.25 / 2.5 / – | 1.25 / 2.5 / – | 2 µs / 2 µs / – |
`, out.String())
	r.Peers = r.Peers[:1]
	require.Equal(t, report.Unknown, r.tail()[1][3], "nothing beside it")
}

func TestTailIsNarrowedByFlags(t *testing.T) {
	cells := func(args ...string) []report.Cell {
		o, err := parse(append([]string{"-tail"}, args...))
		require.NoError(t, err)
		b := &bench{options: o, report: new(Report)}
		for _, key := range o.peers {
			b.report.Peers = append(b.report.Peers, report.Peer{Key: key})
		}
		return b.cells()
	}
	all := cells()
	require.Len(t, all, 3*3*(3+2+1+1), "strangers, peers, rows")
	require.Contains(t, all, report.Cell{Peer: "unix", Workload: "ping-pong", Size: 1024, Conns: 256, Busy: 8})
	require.Contains(t, all, report.Cell{Peer: "shm", Workload: "connect", Conns: 16, Busy: 2})
	require.Equal(t, []report.Cell{{Peer: "shm", Workload: "grpc", Conns: 4, Busy: 1}, {Peer: "tcp", Workload: "grpc", Conns: 4, Busy: 1}},
		cells("-workloads", "grpc", "-conns", "4", "-busy", "1", "-peers", "shm,tcp"))
	o, err := parse([]string{"-tail", "-rounds", "3"})
	require.NoError(t, err)
	require.Equal(t, 3, o.rounds)
	require.Equal(t, 250*time.Millisecond, o.slice)
	for _, args := range []string{"-tail -peers tcp,unix", "-tail -peers shm", "-tail -listen :0", "-rounds -1", "-slice -10ms"} {
		_, err := parse(strings.Fields(args))
		require.Error(t, err, args)
	}
	_, err = parse([]string{"-tail", "-workloads", "stream"})
	require.ErrorContains(t, err, "no row of stream")
	_, err = parse([]string{"-tail", "-card", "FILE"})
	require.ErrorContains(t, err, "without its RDMA device")
}

func TestTailPrintsOneTable(t *testing.T) {
	t.Parallel()
	program, dir := build(t), t.TempDir()
	out := runLittle(t, program, "-tail", "-out", dir, "-busy", "0,1", "-beside", program, "-workloads", "ping-pong,http", "-sizes", "64", "-markdown")
	require.Len(t, reportIn(t, dir).Results, 2*2*2*4, "strangers, workloads, connections, peers")
	require.Equal(t, 1, strings.Count(out, "|---|"+strings.Repeat("---|", 7)+"\n"))
	require.Equal(t, 2*2*2*2, strings.Count(out, "ringnet shm"), "no version has a row without the other's: %s", out)
	require.Regexp(t, `(?m)^\| http ×2 \| 1 \| ringnet shm \| .* \|\n\| http ×2 \| 1 \| ringnet shm, benchmarks \| `, out)
	require.Contains(t, out, "all the time beside it: 0, 1\n")
}
