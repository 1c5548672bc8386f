// Package metrics exports what package ringnet does in a process, and what the RDMA
// devices of its host have counted: to Prometheus, and as an expvar.
//
//	prometheus.MustRegister(metrics.NewCollector(), metrics.NewDeviceCollector())
//
//	metrics.Publish("ringnet") // as an expvar
//
// Both export the same metrics, which [Descriptions] lists and docs/metrics.md
// explains. Of those that have labels, a value that has been 0 since the start of the
// process may be absent. The metrics of devices are those of the host, and of all
// processes on it: one process of a host is enough to export them.
//
// dashboard.json is a dashboard for Grafana.
package metrics
