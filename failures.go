package ringnet

// What "auto" remembers of networks that have failed.

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// rememberFor is how long a network is not asked again for an address to which
// only TCP has connected, and maxFailures how many such there are at most.
const (
	rememberFor = time.Minute
	maxFailures = 4096
)

// destination is a network of an address, or of all if it cannot be used here.
// Dialers that have other users' listeners
// judged remember for themselves.
type destination struct {
	network string
	fabric  fabric.Fabric // nil with trust
	trust   *Dialer
	remote  netip.AddrPort
}

type failure struct {
	why  Reason
	till time.Time
}

// failures are those of this process.
var failures = failureMemory{known: make(map[destination]failure)}

type failureMemory struct {
	mu    sync.Mutex
	known map[destination]failure
}

// find returns why there is no use in asking, if that is known.
func (m *failureMemory) find(to destination) (Reason, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.known[to]
	if ok && time.Now().After(f.till) {
		delete(m.known, to)
		return Reason{}, false
	}
	return f.why, ok
}

func (m *failureMemory) add(to destination, why Reason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if len(m.known) >= maxFailures {
		maps.DeleteFunc(m.known, func(_ destination, f failure) bool { return now.After(f.till) })
	}
	if f, ok := m.known[to]; !ok && len(m.known) < maxFailures || ok && now.After(f.till) {
		m.known[to] = failure{why, now.Add(rememberFor)}
	}
}

// candidate is a network to ask for a connection, or why there is no use in that.
type candidate struct {
	network
	fabric fabric.Fabric
	err    error
}

// candidates are the networks in turn, and whether one may connect.
func (a *attempt) candidates() (candidates []candidate, any bool) {
	for _, n := range a.networks {
		c := candidate{network: n}
		here := destination{network: n.name}
		if why, ok := failures.find(here); ok {
			c.err = why
		} else if c.fabric, c.err = n.open(a.TrustUser, a.Config); c.err != nil {
			a.asked[n.name] = here
		} else if why, ok := failures.find(a.destination(n.name, c.fabric)); ok {
			c.err = why
		}
		any = any || c.err == nil
		candidates = append(candidates, c)
	}
	return candidates, any
}

// destination is where the attempt asks a network.
func (a *attempt) destination(network string, f fabric.Fabric) destination {
	if a.TrustUser != nil {
		return destination{network: network, trust: a.Dialer, remote: a.remote}
	}
	return destination{network: network, fabric: f, remote: a.remote}
}

// remember keeps why networks that were asked have failed, now that TCP has
// connected: if it does not, the peer may not be there yet.
func (a *attempt) remember(reasons []Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range reasons {
		if to, ok := a.asked[r.Network]; ok && r.Code.lasts() {
			failures.add(to, r)
		}
	}
}
