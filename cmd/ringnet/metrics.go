package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/proxy"
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

// proxyCollector collects the Stats of proxies.
type proxyCollector struct{ proxies *proxies }

func proxyDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ringnet_proxy_"+name, help, append([]string{"listen", "to"}, labels...), nil)
}

var (
	proxyConnections = proxyDesc("connections", "Connections at the moment.")
	proxyAccepted    = proxyDesc("accepted_total", "Connections accepted, by the network that carries them.", "network")
	proxyDialed      = proxyDesc("dialed_total", "Connections made for them, by the network that carries them.", "network")
	proxyPassedOver  = proxyDesc("passed_over_total", "Connections made that a better network does not carry, by the code of the reason.", "network", "code")
	proxyEnded       = proxyDesc("ended_total", "Connections that have ended or were refused, by how.", "outcome")
	proxyBytes       = proxyDesc("bytes_total", "Bytes moved, from clients (requests) and to them (replies).", "direction")
)

func (c proxyCollector) Describe(descs chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, descs)
}

func (c proxyCollector) Collect(out chan<- prometheus.Metric) {
	for _, p := range c.proxies.all() {
		s, f := p.Stats(), p.Forwarding()
		send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
			labels = append([]string{f.Listen.String(), f.To.String()}, labels...)
			out <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
		}
		send(proxyConnections, prometheus.GaugeValue, float64(s.Connections))
		for network, n := range s.Accepted {
			send(proxyAccepted, prometheus.CounterValue, float64(n), network)
		}
		for network, n := range s.Dialed {
			send(proxyDialed, prometheus.CounterValue, float64(n), network)
		}
		for miss, n := range s.PassedOver {
			send(proxyPassedOver, prometheus.CounterValue, float64(n), miss.Network, string(miss.Code))
		}
		for _, outcome := range proxy.Outcomes {
			send(proxyEnded, prometheus.CounterValue, float64(s.Ended[outcome]), string(outcome))
		}
		send(proxyBytes, prometheus.CounterValue, float64(s.Requested), "requests")
		send(proxyBytes, prometheus.CounterValue, float64(s.Replied), "replies")
	}
}
