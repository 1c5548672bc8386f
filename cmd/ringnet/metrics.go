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
		proxyCollector{ps},
		metrics.NewCollector(),
		metrics.NewDeviceCollector(),
	)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// proxyCollector collects the metrics of proxies.
type proxyCollector struct{ proxies *proxies }

// Describe describes nothing: forwardings come and go.
func (c proxyCollector) Describe(chan<- *prometheus.Desc) {}

func (c proxyCollector) Collect(out chan<- prometheus.Metric) {
	for _, p := range c.proxies.all() {
		p.Collect(out)
	}
}
