package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFigureComparesWithTheBestOfTheOthersInEachRound(t *testing.T) {
	result := func(peer string, p99 ...float64) *Result {
		r := &Result{Cell: Cell{Peer: peer, Workload: "http", Conns: 16}}
		for _, v := range p99 {
			r.Rounds = append(r.Rounds, &Sample{Ops: 1, Seconds: 1 / v, P99: v})
		}
		return r
	}
	r := &Report{Results: []*Result{result("shm", 6, 6, 6), result("tcp", 3, 4, 12), result("unix", 2, 12, 6)}}
	r.Options.Rounds = 3

	least := r.compare(rule{subject: "shm", others: both, workload: "http", metric: (*Sample).p99, target: 1.5, atMost: true}, 16)
	assert.Equal(t, []float64{3, 1.5, 1}, least.Ratios)
	assert.Equal(t, met, least.Verdict)
	most := r.compare(rule{subject: "shm", others: both, workload: "http", metric: (*Sample).rate, target: 1}, 16)
	assert.InDeltaSlice(t, []float64{2, 0.5, 0.5}, most.Ratios, 1e-9)
	assert.Equal(t, notMet, most.Verdict)
}

func TestTicksLieBetweenPowersOfTenIfTheseAreFew(t *testing.T) {
	assert.Equal(t, []float64{1, 2, 5, 10, 20, 50, 100}, ticks(1, 100))
	assert.Equal(t, []float64{1, 10, 100, 1000}, ticks(1, 1000))
}
