package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/proxy"
)

// metricsHandler serves what proxies have done, and what the process takes.
func metricsHandler(proxies []*proxy.Proxy) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		proxyCollector{proxies},
		linkCollector{},
	)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// proxyCollector tells the Stats of proxies.
type proxyCollector struct{ proxies []*proxy.Proxy }

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

func (c proxyCollector) Collect(metrics chan<- prometheus.Metric) {
	for _, p := range c.proxies {
		s, f := p.Stats(), p.Forwarding()
		send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
			labels = append([]string{f.Listen.String(), f.To.String()}, labels...)
			metrics <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
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

// linkCollector tells what the links of the process are and take.
type linkCollector struct{}

var (
	linksUp = prometheus.NewDesc("ringnet_links", "Links to other processes that are up.", []string{"network"}, nil)
	memory  = prometheus.NewDesc("ringnet_memory_bytes",
		"Memory that links have registered, and may register; of it locked (pinned) for devices.", []string{"kind"}, nil)
)

func (linkCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- linksUp
	descs <- memory
}

func (linkCollector) Collect(metrics chan<- prometheus.Metric) {
	up := map[string]int{"shm": 0, "rdma": 0}
	for _, l := range ringnet.Links() {
		up[l.Network]++
	}
	for network, n := range up {
		metrics <- prometheus.MustNewConstMetric(linksUp, prometheus.GaugeValue, float64(n), network)
	}
	m := ringnet.Memory()
	for kind, n := range map[string]int{"used": m.Used, "limit": m.Limit, "locked": m.Locked, "locked_limit": m.LockedLimit} {
		metrics <- prometheus.MustNewConstMetric(memory, prometheus.GaugeValue, float64(n), kind)
	}
}
