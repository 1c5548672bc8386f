package metrics

import "github.com/ringnet/ringnet"

// process are the metrics of what package ringnet does in this process. The tags of its structs have their
// names and their help.
var process list

var (
	linksUp = process.gauge("links", "Links to other processes that are up.", "network")

	ofLinks  = fields[ringnet.LinkInfo](process.gauge, "network")
	ofMemory = fields[ringnet.MemoryInfo](process.gauge)
	ofTotals = fields[ringnet.NetworkTotals](process.counter, "network")
)

const ofTCP = "tcp"

// networks are those that a field is of, by what its tag says. Auto has TCP besides those that have links.
var networks = map[string][]string{"": {"tcp", "shm", "rdma"}, "links": {"shm", "rdma"}}

func readProcess(emit emitter) {
	emitTotals(emit, ringnet.Totals())
	emitLinks(emit, ringnet.Links())
	memory := ringnet.Memory()
	for _, f := range ofMemory {
		emit(f.metric, number(f.in(memory)))
	}
}

func emitTotals(emit emitter, totals map[string]ringnet.NetworkTotals) {
	for _, f := range ofTotals {
		switch {
		case f.of == ofTCP:
			emit(f.metric, number(f.in(totals["tcp"])))
		case f.byCode:
			for network, t := range totals {
				for counts := f.in(t).MapRange(); counts.Next(); {
					emit(f.metric, number(counts.Value()), network, counts.Key().String())
				}
			}
		default:
			for _, network := range networks[f.of] {
				emit(f.metric, number(f.in(totals[network])), network)
			}
		}
	}
}

func emitLinks(emit emitter, links []ringnet.LinkInfo) {
	for _, network := range networks["links"] {
		up, sums := 0, make([]float64, len(ofLinks))
		for _, l := range links {
			if l.Network != network {
				continue
			}
			up++
			for i, f := range ofLinks {
				sums[i] += number(f.in(l))
			}
		}
		emit(linksUp, float64(up), network)
		for i, f := range ofLinks {
			emit(f.metric, sums[i], network)
		}
	}
}
