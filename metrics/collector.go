package metrics

import "github.com/prometheus/client_golang/prometheus"

// NewCollector returns a collector of what package ringnet does in this process: links,
// memory, listeners, dials, connections and datagrams. All collectors that it returns collect the
// same, so a registry accepts only one of them. A collector may be used by several goroutines at
// once.
func NewCollector() prometheus.Collector { return newCollector(process, readProcess) }

// NewDeviceCollector returns a collector of the RDMA devices of this host: the states and
// rates of their ports, and their counters. On a host without devices it collects only
// ringnet_devices_read.
func NewDeviceCollector() prometheus.Collector { return newCollector(devices, readDevices) }

type collector struct {
	descs map[*Description]*prometheus.Desc
	read  func(emit emitter)
}

func newCollector(metrics list, read func(emitter)) collector {
	c := collector{make(map[*Description]*prometheus.Desc), read}
	for _, d := range metrics {
		c.descs[d] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	c.read(func(d *Description, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if d.Counter {
			kind = prometheus.CounterValue
		}
		metrics <- prometheus.MustNewConstMetric(c.descs[d], kind, value, labels...)
	})
}
