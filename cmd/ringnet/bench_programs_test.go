//go:build linux

package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/ringnet/ringnet/internal/inspect"
	"github.com/ringnet/ringnet/internal/testing/programs"
)

// BenchmarkPrograms measures what two proxies cost unmodified programs: with shm between
// them, beside two of socat's with TCP, or on an RDMA device with rdma; and beside TCP
// without proxies.
//
//	go test -run '^$' -bench Programs -benchtime 1x -count 5
//
// It reports requests in a second, and the processor time that each takes in both proxies
// together.
func BenchmarkPrograms(b *testing.B) {
	between := "shm"
	if softroceAddress() != "" {
		between = "rdma"
	}
	for _, p := range []struct {
		name  string
		serve func(b *testing.B) (address string)
		load  func(b *testing.B, port string) (requests int)
	}{
		{"redis", serveRedis, loadRedis},
		{"pgbench", servePostgres, loadPostgres},
		{"ab", serveHTTP, loadHTTP},
	} {
		b.Run(p.name, func(b *testing.B) {
			eachWay(b, between, p.serve(b), func(b *testing.B, address string, proxies ...*service) {
				measureLoad(b, func() int { return p.load(b, portOf(b, address)) }, proxies...)
			})
		})
	}
}

// measureLoad reports requests in a second, and the processor time of each in the
// proxies.
func measureLoad(b *testing.B, load func() (requests int), proxies ...*service) {
	spent := func() (all time.Duration) {
		for _, p := range proxies {
			pid := p.cmd.Process.Pid
			all += processorTimes(survey{all: []inspect.Process{{PID: pid}}})[pid]
		}
		return all
	}
	requests, before := 0, spent()
	b.ResetTimer()
	for range b.N {
		requests += load()
	}
	b.ReportMetric(float64(requests)/b.Elapsed().Seconds(), "requests/s")
	if len(proxies) > 0 {
		b.ReportMetric(float64((spent()-before).Microseconds())/float64(requests), "proxies-µs/request")
	}
}

func serveRedis(b *testing.B) (address string) {
	address = freeAddress(b)
	programs.StartRedis(b, "--bind", "127.0.0.1", "--port", portOf(b, address))
	return address
}

func loadRedis(b *testing.B, port string) (requests int) {
	requests = 20_000
	output(b, programs.Path(b, "redis-benchmark", "redis-tools"), "-p", port, "-q", "-t", "get", "-c", "50", "-n", strconv.Itoa(requests))
	return requests
}

func servePostgres(b *testing.B) (address string) {
	address = freeAddress(b)
	port := portOf(b, address)
	programs.StartPostgres(b, "port="+port)
	output(b, programs.Path(b, "pgbench", "postgresql"), "-h", "127.0.0.1", "-p", port, "-U", "bench", "-i", "-q", "postgres")
	return address
}

func loadPostgres(b *testing.B, port string) (requests int) {
	const clients, each = 8, 1000
	output(b, programs.Path(b, "pgbench", "postgresql"), "-h", "127.0.0.1", "-p", port, "-U", "bench", "-n", "-S",
		"-c", strconv.Itoa(clients), "-t", strconv.Itoa(each), "postgres")
	return clients * each
}

func serveHTTP(b *testing.B) (address string) {
	page := make([]byte, 1000)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(page) }))
	b.Cleanup(site.Close)
	return site.Listener.Addr().String()
}

func loadHTTP(b *testing.B, port string) (requests int) {
	requests = 20_000
	output(b, programs.Path(b, "ab", "apache2-utils"), "-q", "-k", "-n", strconv.Itoa(requests), "-c", "16", "http://127.0.0.1:"+port+"/")
	return requests
}
