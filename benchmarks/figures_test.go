package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ringnet/ringnet/internal/perf"
)

func TestFigureComparesWithTheBestOfTheOthersInEachRound(t *testing.T) {
	result := func(peer string, p99 ...float64) *perf.Result {
		r := &perf.Result{Cell: perf.Cell{Peer: peer, Workload: "http", Conns: 16}}
		for _, v := range p99 {
			r.Rounds = append(r.Rounds, &perf.Sample{Ops: 1, Seconds: 1 / v, P99: v})
		}
		return r
	}
	r := &Report{Report: perf.Report{Results: []*perf.Result{result("shm", 6, 6, 6), result("tcp", 3, 4, 12), result("unix", 2, 12, 6)}, Rounds: 3}}

	least := r.compare(rule{subject: "shm", others: both, workload: "http", metric: p99, target: 1.5, atMost: true}, 16, 0)
	assert.Equal(t, []float64{3, 1.5, 1}, least.Ratios)
	assert.Equal(t, met, least.Verdict)
	most := r.compare(rule{subject: "shm", others: both, workload: "http", metric: (*perf.Sample).PerSecond, target: 1}, 16, 0)
	assert.InDeltaSlice(t, []float64{2, 0.5, 0.5}, most.Ratios, 1e-9)
	assert.Equal(t, notMet, most.Verdict)
}
