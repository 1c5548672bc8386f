package proxy

import (
	"errors"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcome is how a connection has ended: a label of metrics.
type Outcome string

const (
	Finished    Outcome = "finished"    // both ends have ended their streams
	Reset       Outcome = "reset"       // one end was reset by its program or its system before, and so was the other
	Lost        Outcome = "lost"        // the way to one end was lost before, and the other was reset
	Undelivered Outcome = "undelivered" // the last bytes written may not have arrived
	Idled       Outcome = "idle"        // it was without traffic for too long
	Drained     Outcome = "drained"     // it was without traffic when the proxy stopped
	Cut         Outcome = "cut"         // it had not ended in time when the proxy stopped

	TooMany     Outcome = "too_many"     // refused: there were MaxConnections
	NotRequired Outcome = "not_required" // refused: none of the required networks carries it
	Unreachable Outcome = "unreachable"  // reset: the proxy could not dial
)

var outcomes = []Outcome{Finished, Reset, Lost, Undelivered, Idled, Drained, Cut, TooMany, NotRequired, Unreachable}

// end returns how c has ended, given the error of its run.
func (c *connection) end(err error) Outcome {
	switch why := c.outcome.Load(); {
	case why != nil:
		return *why
	case err == nil:
		return Finished
	case truncated(err):
		return lossBy(err)
	}
	return Undelivered
}

// lossBy is the outcome of a connection of which an end has failed. Programs that close a connection
// with bytes unread, as iperf3 does, reset it.
func lossBy(err error) Outcome {
	if errors.Is(err, syscall.ECONNRESET) {
		return Reset
	}
	return Lost
}

// counters are what a proxy has counted: metrics, with the forwarding in their labels.
type counters struct {
	accepted, dialed *prometheus.CounterVec // connections, by the network that carries them
	passedOver       *prometheus.CounterVec // dialed connections that a better network does not carry
	ended            *prometheus.CounterVec // connections, those that were refused included
	requested        prometheus.Counter     // bytes moved from clients
	replied          prometheus.Counter     // bytes moved to clients
	all              []prometheus.Collector
}

func newCounters(f Forwarding, connections func() int) *counters {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Name: "ringnet_proxy_" + name, Help: help, ConstLabels: prometheus.Labels{"listen": f.Listen.String(), "to": f.To.String()}}
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	bytes := vec("bytes_total", "Bytes moved, from clients (requests) and to them (replies).", "direction")
	c := &counters{
		accepted:   vec("accepted_total", "Connections accepted, by the network that carries them.", "network"),
		dialed:     vec("dialed_total", "Connections made for them, by the network that carries them.", "network"),
		passedOver: vec("passed_over_total", "Connections made that a better network does not carry, by the code of the reason.", "network", "code"),
		ended:      vec("ended_total", "Connections that have ended or were refused, by how.", "outcome"),
		requested:  bytes.WithLabelValues("requests"),
		replied:    bytes.WithLabelValues("replies"),
	}
	for _, o := range outcomes {
		c.ended.WithLabelValues(string(o)) // is there from the beginning
	}
	c.all = []prometheus.Collector{c.accepted, c.dialed, c.passedOver, c.ended, bytes,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("connections", "Connections at the moment.")), func() float64 { return float64(connections()) })}
	return c
}

func (c *counters) end(why Outcome) { c.ended.WithLabelValues(string(why)).Inc() }

// Collect sends the proxy's metrics.
func (p *Proxy) Collect(out chan<- prometheus.Metric) {
	for _, c := range p.counters.all {
		c.Collect(out)
	}
}
