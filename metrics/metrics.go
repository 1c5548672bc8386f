package metrics

import (
	"math"
	"reflect"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// metric is one of this package's.
type metric struct {
	name   string
	labels []string // names, in order
	kind   prometheus.ValueType
	desc   *prometheus.Desc
}

// emitter is called with the value of a metric, for the given values of its labels.
type emitter func(m *metric, value float64, labels ...string)

// list is a list of metrics, to which counter, gauge and fields add.
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

// field is a field of a struct of package ringnet that has a metric.
type field struct {
	*metric
	index  []int
	of     string // what its tag says: of which networks it is
	byCode bool   // it is a map, by code
}

// fields adds a metric for each field whose tags have one, by add, with labels. The tags are
//
//	metric:"name" help:"text" of:"networks"
//
// A field of TCP alone has no label. One that is a map has a label more, "code".
func fields[T any](add func(name, help string, labels ...string) *metric, labels ...string) (all []field) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		name, ok := f.Tag.Lookup("metric")
		if !ok {
			continue
		}
		own := slices.Clone(labels)
		x := field{index: f.Index, of: f.Tag.Get("of"), byCode: f.Type.Kind() == reflect.Map}
		switch {
		case x.byCode:
			own = append(own, "code")
		case x.of == ofTCP:
			own = nil
		}
		x.metric = add(name, f.Tag.Get("help"), own...)
		all = append(all, x)
	}
	return all
}

// in returns the field's value in a struct.
func (f field) in(s any) reflect.Value { return reflect.ValueOf(s).FieldByIndex(f.index) }

// number returns the value of a metric. The largest int stands for no limit.
func number(v reflect.Value) float64 {
	switch {
	case v.Kind() == reflect.Bool && v.Bool():
		return 1
	case v.Kind() == reflect.Bool:
		return 0
	case v.CanUint():
		return float64(v.Uint())
	case v.Int() == math.MaxInt:
		return math.Inf(1)
	}
	return float64(v.Int())
}

// collector collects metrics that read emits.
type collector struct {
	metrics list
	read    func(emit emitter)
}

// NewCollector returns a collector of what package ringnet does in this process: links,
// memory, listeners, dials and connections. All collectors that it returns collect the
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
