// Package transport connects processes over one network at a time, shm or rdma. A [Dialer] begins
// streams on links that are up, or makes links; a [Listener] answers requests for links, and has
// their streams wait for Accept in a [Queue]. Package auto, above it, chooses among networks, and
// package ringnet has what programs see.
package transport

import (
	"sync"

	"github.com/ringnet/ringnet/internal/bubble"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
)

// Network carries connections, at addresses of any family.
type Network struct {
	Name      string // as Addr.Network returns it
	Open      func(Trust, *link.Config) (fabric.Fabric, error)
	Addresses *link.Addresses // the pairs that connections of this process have; nil: whatever the fabric has
	Requests  *Requests       // nil: as many as there are
	OneHost   bool            // a queue pair is lost only with a process
}

// Trust decides which users' processes are connected to. nil trusts this process's user, and root as
// a listener.
type Trust func(uid uint32) bool

// The networks that there are.
var (
	SHM  = &Network{Name: "shm", Open: openSHM, Addresses: new(link.Addresses), OneHost: true}
	RDMA = &Network{Name: "rdma", Open: openRDMA, Addresses: new(link.Addresses), Requests: NewRequests()}
)

func openSHM(trust Trust, _ *link.Config) (fabric.Fabric, error) {
	if trust == nil {
		return shm.Fabric()
	}
	return shm.New(shm.Config{Trust: trust})
}

func openRDMA(_ Trust, c *link.Config) (fabric.Fabric, error) {
	if err := bubble.RefuseRDMA(); err != nil {
		return nil, err
	}
	if c == nil {
		return verbs.Fabric()
	}
	return verbs.New(verbs.Config{TrafficClass: c.TrafficClass, Vectors: c.Vectors, Inline: c.Inline})
}

// reconnect has the listeners to which peers come back when a link has lost its queue pair, for
// each fabric whose queue pairs may be lost while both processes live.
var reconnect sync.Map // of *link.ReconnectListener by fabric.Fabric

// setup returns what links of the network are made of, in a namespace.
func (n *Network) setup(c *link.Config, f fabric.Fabric, in netns.Namespace) (link.Setup, error) {
	s, err := link.NewSetup(c)
	if err != nil {
		return s, err
	}
	s.Network, s.Namespace, s.Addresses = n.Name, in, n.Addresses
	if s.ResumeTimeout > 0 && !n.OneHost && in == 0 { // goroutines look for another queue pair
		r, _ := reconnect.LoadOrStore(f, &link.ReconnectListener{Fabric: f})
		s.Reconnect = r.(*link.ReconnectListener)
	}
	return s, nil
}
