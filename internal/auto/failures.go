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

// failureKey is where a network has failed: at one address, or at all if this host cannot use the
// network. Network namespaces have addresses of their own, so they have failures of their own; and so have
// dialers that decide by a function which users to trust, for another's may decide otherwise.
type failureKey struct {
	network   string
	namespace netns.Namespace
	fabric    fabric.Fabric // nil with trust
	trustee   any           // Dialer.Trustee; nil without trust
	remote    netip.AddrPort
}

// Failures are those that are remembered. The zero Failures has none.
type Failures struct {
	mu    sync.Mutex // guards known
	known map[failureKey]remembered
}

type remembered struct {
	Failure
	since time.Time
}

// maxFailures is how many failures are remembered at most.
const maxFailures = 4096

// find returns how a network has failed, if it has within a time, or nil.
func (m *Failures) find(key failureKey, within time.Duration) *Failure {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.known[key]
	switch {
	case !ok:
		return nil
	case time.Since(r.since) > within:
		delete(m.known, key)
		return nil
	}
	return &r.Failure
}

// add remembers a failure, unless it is known for less than a time, or there are too many.
func (m *Failures) add(key failureKey, f Failure, within time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = make(map[failureKey]remembered)
	}
	if len(m.known) >= maxFailures {
		maps.DeleteFunc(m.known, func(_ failureKey, r remembered) bool { return time.Since(r.since) > within })
	}
	if r, ok := m.known[key]; !ok && len(m.known) < maxFailures || ok && time.Since(r.since) > within {
		m.known[key] = remembered{f, time.Now()}
	}
}
