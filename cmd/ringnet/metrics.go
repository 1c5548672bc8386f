package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ringnet/ringnet/metrics"
)

// metricsHandler serves the metrics of proxies, of package ringnet, of the host's RDMA
// devices, and of the process.
func metricsHandler(ps *proxies) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		ps,
		metrics.NewCollector(),
		metrics.NewDeviceCollector(),
	)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe describes nothing: forwardings come and go.
func (ps *proxies) Describe(chan<- *prometheus.Desc) {}

// Collect collects the metrics of the proxies that accept connections.
func (ps *proxies) Collect(out chan<- prometheus.Metric) {
	for _, p := range ps.all() {
		p.Collect(out)
	}
}
