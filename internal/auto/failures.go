package auto

// What auto remembers of networks that have failed.

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/netns"
)

// destination is one network at one address, or at all addresses if this host cannot use the
// network. Network namespaces have destinations of their own, for their addresses are; so have
// dialers that decide by a function which users to trust, for another's may decide otherwise.
type destination struct {
	network   string
	namespace netns.Namespace
	fabric    fabric.Fabric // nil with trust
	trust     any           // Dialer.Trust
	remote    netip.AddrPort
}

// Failures are those that are remembered. The zero Failures has none.
type Failures struct {
	mu    sync.Mutex // guards known
	known map[destination]remembered
}

type remembered struct {
	Failure
	since time.Time
}

// maxFailures is how many failures are remembered at most.
const maxFailures = 4096

// find returns how a network has failed, if it has within a time, or nil.
func (m *Failures) find(to destination, within time.Duration) *Failure {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.known[to]
	switch {
	case !ok:
		return nil
	case time.Since(r.since) > within:
		delete(m.known, to)
		return nil
	}
	return &r.Failure
}

// add remembers a failure, unless it is known for less than a time, or there are too many.
func (m *Failures) add(to destination, f Failure, within time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = make(map[destination]remembered)
	}
	if len(m.known) >= maxFailures {
		maps.DeleteFunc(m.known, func(_ destination, r remembered) bool { return time.Since(r.since) > within })
	}
	if r, ok := m.known[to]; !ok && len(m.known) < maxFailures || ok && time.Since(r.since) > within {
		m.known[to] = remembered{f, time.Now()}
	}
}

// candidate is a network to ask for a connection, or how it has failed before it was asked.
type candidate struct {
	Network
	fabric  fabric.Fabric
	at      destination
	failure *Failure
}

// candidates returns the networks in the order to ask them. A failure to make a link does not count
// while one is up, which may have been silent or without a path when another was asked for.
func (a *attempt) candidates() (candidates []candidate) {
	for _, n := range a.Networks {
		c := candidate{Network: n, at: destination{network: n.Name, namespace: a.Namespace}}
		if c.failure = a.remembered(c.at); c.failure == nil {
			var err error
			if c.fabric, err = n.Open(); err != nil {
				a.asked[n.Name] = c.at
				c.failure = &Failure{Network: n.Name, Err: err}
			} else {
				c.at = a.destination(n.Name, c.fabric)
				c.failure = a.remembered(c.at)
			}
		}
		if c.failure != nil && c.fabric != nil && n.Up(c.fabric, a.remote) {
			c.failure = nil
		}
		candidates = append(candidates, c)
	}
	return candidates
}

// remembered returns how a network has failed lately, or nil. It saves the time before TCP is dialed: where TCP is
// not enough, each dial asks.
func (a *attempt) remembered(at destination) *Failure {
	if !a.FallBack {
		return nil
	}
	return a.Failures.find(at, a.Times.Remember)
}

// destination returns where the attempt asks a network.
func (a *attempt) destination(network string, f fabric.Fabric) destination {
	if a.Trust != nil {
		f = nil // each dial has one of its own
	}
	return destination{network, a.Namespace, f, a.Trust, a.remote}
}

// remember keeps the failures of networks that were asked. It is called when TCP has connected:
// otherwise the peer may not have started yet.
func (a *attempt) remember(failures []Failure) {
	for _, f := range failures {
		if to, ok := a.asked[f.Network]; ok && (f.Unanswered || a.Lasts(f.Err)) {
			a.Failures.add(to, f, a.Times.Remember)
		}
	}
}
