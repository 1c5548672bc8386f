// Package metrics exports to Prometheus what package ringnet does in a process, and what the
// RDMA devices of its host have counted.
//
//	prometheus.MustRegister(metrics.NewCollector(), metrics.NewDeviceCollector())
//
// docs/metrics.md lists the metrics, whose help explains them. Of those that have labels, a value that has been 0 since the start of the process may be absent. The metrics of devices are those of the host, and of all
// processes on it: one process of a host is enough to export them.
//
// dashboard.json is a dashboard for Grafana.
package metrics
