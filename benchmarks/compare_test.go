package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/perf/report"
)

func TestCompareTellsChangesFromChance(t *testing.T) {
	write := func(name string, r *Report) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, report.WriteJSON(path, r))
		return path
	}
	result := func(peer string, rates ...int) *report.Result {
		r := &report.Result{Cell: report.Cell{Peer: peer, Workload: "stream", Size: 64, Conns: 1}}
		for _, rate := range rates {
			r.Rounds = append(r.Rounds, &report.Sample{Ops: rate, Seconds: 1})
		}
		r.Rounds = append(r.Rounds, nil) // failed
		return r
	}
	older := write("v0.1.0.json", &Report{Commit: "v0.1.0", Report: report.Report{Results: []*report.Result{
		result("shm", 100, 102, 99, 101, 100, 98), result("tcp", 10, 11, 12, 13, 14, 15), result("unix", 1),
	}}})
	newer := write("v0.2.0.json", &Report{Commit: "v0.2.0", Report: report.Report{Results: []*report.Result{
		result("shm", 200, 204, 199, 201, 200, 198), result("tcp", 15, 14, 13, 12, 11, 10),
	}}})

	var out strings.Builder
	require.NoError(t, compare(&out, older+","+newer))
	assert.Contains(t, out.String(), "v0.1.0.json: ringnet v0.1.0, ")
	assert.Regexp(t, `stream 64 B ×1 shm +100 +±2% +200 +±2% +\+100\.00% \(p=0\.002 n=6\)`, out.String())
	assert.Regexp(t, `stream 64 B ×1 tcp +12\.5 +±20% +12\.5 +±20% +~ \(p=1\.000 n=6\)`, out.String())
	assert.NotContains(t, out.String(), "unix", "one of them has not measured it")
	assert.NotContains(t, out.String(), "median time", "which is not known")

	require.ErrorContains(t, compare(&out, older), "OLD,NEW")
	require.ErrorContains(t, compare(&out, older+",nowhere.json"), "nowhere.json")
}
