package ringnet

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/internal/bubble"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/netns"
	"github.com/ringnet/ringnet/rconn"
)

// Addr is the address of one end of a connection, or of a listener. It is a value, which ==
// compares. An [AutoConn] and an [AutoListener] have addresses of type *net.TCPAddr, which have the
// same three methods.
type Addr = rconn.Addr

// carrier is what carries connections, at addresses of any family.
type carrier struct {
	name      string // as Addr.Network returns it
	open      func(trustUser, *Config) (fabric.Fabric, error)
	addresses *link.Addresses // the pairs that connections of this process have; nil: whatever the fabric has
	requests  *requestLimiter // nil: as many as there are
	oneHost   bool            // a queue pair is lost only with a process
}

var (
	overSHM  = &carrier{name: "shm", open: openSHM, addresses: new(link.Addresses), oneHost: true}
	overRDMA = &carrier{name: "rdma", open: openRDMA, addresses: new(link.Addresses), requests: newRequestLimiter()}

	// overAuto stands for several, and resolves an address once for all of them.
	overAuto = &carrier{name: "auto"}
)

// network is what the first argument of Dial and Listen names.
type network struct {
	*carrier
	family    hostport.Family
	namespace netns.Namespace // of the thread that dials or listens
}

// here returns the network in the namespace of the calling thread.
func (n network) here() network {
	n.namespace = netns.Current()
	return n
}

// networks are those that there are, by their names.
var networks = map[string]network{
	"auto":  {carrier: overAuto, family: "ip"},
	"auto4": {carrier: overAuto, family: "ip4"},
	"auto6": {carrier: overAuto, family: "ip6"},
	"shm":   {carrier: overSHM, family: "ip"},
	"rdma":  {carrier: overRDMA, family: "ip"},
	"rdma4": {carrier: overRDMA, family: "ip4"},
	"rdma6": {carrier: overRDMA, family: "ip6"},
}

// trustUser is Dialer.TrustUser or ListenConfig.TrustUser.
type trustUser func(uid uint32) bool

func openSHM(trust trustUser, _ *Config) (fabric.Fabric, error) {
	if trust == nil {
		return shm.Fabric()
	}
	return shm.New(shm.Config{Trust: trust})
}

func openRDMA(_ trustUser, c *Config) (fabric.Fabric, error) {
	if err := bubble.RefuseRDMA(); err != nil {
		return nil, err
	}
	if c == nil {
		return verbs.Fabric()
	}
	return verbs.New(verbs.Config{TrafficClass: c.TrafficClass})
}

// unknownNetwork returns a net.UnknownNetworkError that also lists the networks that there
// are.
func unknownNetwork(name string) error {
	hint := ""
	if strings.HasPrefix(name, "tcp") {
		hint = "; Dialer.ForTCP names the one to dial for tcp"
	}
	known := strings.Join(slices.Sorted(maps.Keys(networks)), ", ")
	return fmt.Errorf("%w: Dial and Listen know %s%s", net.UnknownNetworkError(name), known, hint)
}

// resolveLocal returns the address to listen at.
func (n network) resolveLocal(ctx context.Context, address string) (netip.AddrPort, error) {
	return n.family.ResolveLocal(ctx, "tcp", address)
}
