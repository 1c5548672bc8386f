package ringnet

// What auto remembers of networks that have failed.

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
)

// rememberFor is how long auto does not ask a network again that has failed for an address to
// which TCP has connected. maxFailures is how many such failures it remembers at most.
const (
	rememberFor = time.Minute
	maxFailures = 4096
)

// destination is one network at one address, or at all addresses if this host cannot use the
// network. A Dialer with a function TrustUser has destinations of its own, for another
// Dialer's function may decide otherwise.
type destination struct {
	network string
	fabric  fabric.Fabric // nil with trust
	trust   *Dialer       // nil without TrustUser
	remote  netip.AddrPort
}

type failure struct {
	why  Reason
	till time.Time // when auto asks the network again
}

// failures are those that this process remembers.
var failures = failureMemory{known: make(map[destination]failure)}

type failureMemory struct {
	mu    sync.Mutex // guards known
	known map[destination]failure
}

// find returns why a network has failed, if that was within rememberFor.
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

// candidate is a network to ask for a connection, or an error that says why not to ask it.
type candidate struct {
	network
	fabric fabric.Fabric
	err    error
}

// candidates returns the networks in the order to ask them, and whether one is worth asking.
func (a *attempt) candidates() (candidates []candidate, worth bool) {
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
		worth = worth || c.err == nil
		candidates = append(candidates, c)
	}
	return candidates, worth
}

// destination returns where the attempt asks a network.
func (a *attempt) destination(network string, f fabric.Fabric) destination {
	if a.TrustUser != nil {
		return destination{network: network, trust: a.Dialer, remote: a.remote}
	}
	return destination{network: network, fabric: f, remote: a.remote}
}

// remember keeps the reasons of networks that were asked and failed. It is called when TCP has
// connected: otherwise the peer may not have started yet.
func (a *attempt) remember(reasons []Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range reasons {
		if to, ok := a.asked[r.Network]; ok && r.Code.lasts() {
			failures.add(to, r)
		}
	}
}
