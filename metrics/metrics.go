package metrics

import "github.com/prometheus/client_golang/prometheus"

// metric is one of this package's.
type metric struct {
	name   string
	labels []string // names, in order
	kind   prometheus.ValueType
	desc   *prometheus.Desc
}

// emitter is called with the value of a metric, for the given values of its labels.
type emitter func(m *metric, value float64, labels ...string)

// list is a list of metrics, to which counter and gauge add.
type list []*metric

func (l *list) counter(name, help string, labels ...string) *metric {
	return l.add(prometheus.CounterValue, name+"_total", help, labels)
}

func (l *list) gauge(name, help string, labels ...string) *metric {
	return l.add(prometheus.GaugeValue, name, help, labels)
}

func (l *list) add(kind prometheus.ValueType, name, help string, labels []string) *metric {
	name = "ringnet_" + name
	m := &metric{name, labels, kind, prometheus.NewDesc(name, help, labels, nil)}
	*l = append(*l, m)
	return m
}

// collector collects metrics that read emits.
type collector struct {
	metrics list
	read    func(emit emitter)
}

// NewCollector returns a collector of what package ringnet does in this process: links,
// memory, listeners, dials, connections and datagrams. All collectors that it returns collect the
// same, so a registry accepts only one of them. A collector may be used by several goroutines at
// once.
func NewCollector() prometheus.Collector { return collector{process, readProcess} }

// NewDeviceCollector returns a collector of the RDMA devices of this host: the states and
// rates of their ports, and their counters. On a host without devices it collects only
// ringnet_devices_read.
func NewDeviceCollector() prometheus.Collector { return collector{devices, readDevices} }

// Describe implements prometheus.Collector.
func (c collector) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		descs <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	c.read(func(m *metric, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
	})
}
