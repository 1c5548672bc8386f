package metrics_test

import (
	"fmt"
	"log"
	"net/http"

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

// The handler of package expvar serves it at /debug/vars.
func ExamplePublish() {
	metrics.Publish("ringnet")
	log.Fatal(http.ListenAndServe("localhost:8080", nil))
}
