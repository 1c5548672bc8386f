package ringnet

// The names of networks, and the addresses of connections.

import (
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/rconn"
)

// Addr is the address of one end of a connection, or of a listener. It is a value, which ==
// compares. An [AutoConn] and an [AutoListener] have addresses of type *net.TCPAddr, which have the
// same three methods.
type Addr = rconn.Addr

// namedNetwork is what the first argument of Dial and Listen names.
type namedNetwork struct {
	*transport.Network
	family hostport.Family
}

// overAuto stands for several.
var overAuto = &transport.Network{Name: "auto"}

// networks are those that there are, by their names.
var networks = map[string]namedNetwork{
	"auto":  {overAuto, "ip"},
	"auto4": {overAuto, "ip4"},
	"auto6": {overAuto, "ip6"},
	"shm":   {transport.SHM, "ip"},
	"rdma":  {transport.RDMA, "ip"},
	"rdma4": {transport.RDMA, "ip4"},
	"rdma6": {transport.RDMA, "ip6"},
}

// named returns the networks with some names.
func named(names []string) (all []*transport.Network) {
	for _, name := range names {
		all = append(all, networks[name].Network)
	}
	return all
}
