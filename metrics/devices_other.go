//go:build !linux

package metrics

// listPorts returns none: RDMA devices are found on Linux alone.
func listPorts() ([]port, error) { return nil, nil }
