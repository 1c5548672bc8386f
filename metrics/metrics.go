package metrics

import "slices"

const prefix = "ringnet_"

// Description says what a metric is.
type Description struct {
	Name    string
	Help    string
	Counter bool     // it only rises while the process, or the device, exists; a gauge if false
	Labels  []string // names, in order
}

// Descriptions returns the descriptions of all metrics of this package, those of
// the process first. With them the queries of dashboards and alerts can be tested.
func Descriptions() []Description {
	var all []Description
	for _, s := range sources() {
		for _, d := range *s.metrics {
			c := *d
			c.Labels = slices.Clone(d.Labels)
			all = append(all, c)
		}
	}
	return all
}

// source is a list of metrics and the function that reads them.
type source struct {
	metrics *list
	read    func(emit emitter)
}

// sources returns all sources.
func sources() []source {
	return []source{{&process, readProcess}, {&devices, readDevices}}
}

// emitter is called with the value of a metric, for the given values of its labels.
type emitter func(d *Description, value float64, labels ...string)

// list is a list of descriptions, to which counter and gauge add.
type list []*Description

func (l *list) counter(name, help string, labels ...string) *Description {
	return l.add(&Description{prefix + name + "_total", help, true, labels})
}

func (l *list) gauge(name, help string, labels ...string) *Description {
	return l.add(&Description{prefix + name, help, false, labels})
}

func (l *list) add(d *Description) *Description {
	*l = append(*l, d)
	return d
}
