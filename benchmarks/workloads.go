package main

import (
	"fmt"
	"slices"

	"github.com/ringnet/ringnet/internal/perf/workload"
)

// benchmark is a workload, with what it is measured with.
type benchmark struct {
	workload.Workload
	protocol string // what the server speaks
	conns    []int  // numbers of connections on one host, unless -conns has others
	onDevice []int  // the same on an RDMA device
	tail     []int  // the same with -tail
	alone    bool   // with one connection only
	card     onCard
}

var benchmarks = append([]*benchmark{
	{Workload: workload.PingPong, protocol: "messages", conns: []int{1, 16}, onDevice: []int{1, 16}, tail: []int{16, 64, 256}, card: onCard{conns: one, dma: "free", procs: bothPoll}},
	{Workload: workload.Stream, protocol: "messages", conns: []int{1, 16}, onDevice: []int{1, 16}, card: onCard{conns: one, dma: "free"}},
	{Workload: workload.On, protocol: "messages", conns: []int{1, 4, 16, 64, 256}, onDevice: []int{1, 16}},
	{Workload: workload.Connect, protocol: "messages", conns: []int{1, 16}, onDevice: []int{1, 16}, tail: []int{16}, card: onCard{conns: one}},
	{Workload: workload.HTTP, protocol: "http", conns: []int{1, 4, 16, 64}, onDevice: []int{1, 16}, tail: []int{16, 64}, card: onCard{conns: []int{1, 16, 64}}},
	{Workload: workload.Workload{Key: "grpc", Name: "gRPC unary call, 1 KiB each way", Open: openGRPC},
		protocol: "grpc", conns: []int{1, 4, 16}, onDevice: []int{1, 16}, tail: []int{16}},
	{Workload: workload.Burst, protocol: "messages", conns: []int{5000}, onDevice: []int{500}},
}, cardBenchmarks()...)

func findWorkload(key string) (*benchmark, error) {
	i := slices.IndexFunc(benchmarks, func(w *benchmark) bool { return w.Key == key })
	if i < 0 {
		return nil, fmt.Errorf("no workload is called %q", key)
	}
	return benchmarks[i], nil
}
