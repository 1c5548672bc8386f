package metrics_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringnet/ringnet/metrics"
)

// promhttp.HandlerFor(registry, …) serves them.
func ExampleNewCollector() {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewCollector(), metrics.NewDeviceCollector())

	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
	}
	for _, f := range families {
		if f.GetName() == "ringnet_links" {
			fmt.Println(f.GetHelp())
		}
	}
	// Output: Links to other processes that are up.
}
