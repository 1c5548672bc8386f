package metrics

import (
	"math"

	"github.com/ringnet/ringnet"
)

// process is the metrics of what package ringnet does in this process.
var process list

var (
	linksUp         = process.gauge("links", "Links to other processes that are up.", "network")
	linkConnections = process.gauge("link_connections", "Connections that links carry at the moment.", "network")

	memoryUsed        = process.gauge("memory_used_bytes", "Memory that links have registered.")
	memoryLimit       = process.gauge("memory_limit_bytes", "Memory that links may register.")
	lockedMemoryUsed  = process.gauge("locked_memory_used_bytes", "Memory that links have locked (pinned) for RDMA devices.")
	lockedMemoryLimit = process.gauge("locked_memory_limit_bytes", "Memory that links may lock (pin) for RDMA devices; infinite without a limit.")
)

// linkNetworks are those that have links.
var linkNetworks = []string{"shm", "rdma"}

func readProcess(emit emitter) {
	up, connections := make(map[string]int), make(map[string]int)
	for _, l := range ringnet.Links() {
		up[l.Network]++
		connections[l.Network] += l.Connections
	}
	for _, network := range linkNetworks {
		emit(linksUp, float64(up[network]), network)
		emit(linkConnections, float64(connections[network]), network)
	}
	m := ringnet.Memory()
	emit(memoryUsed, float64(m.Used))
	emit(memoryLimit, limit(m.Limit))
	emit(lockedMemoryUsed, float64(m.Locked))
	emit(lockedMemoryLimit, limit(m.LockedLimit))
}

// limit is a limit of MemoryInfo, which has math.MaxInt where there is none.
func limit(bytes int) float64 {
	if bytes == math.MaxInt {
		return math.Inf(1)
	}
	return float64(bytes)
}
