package auto

// Which networks auto uses.

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// NetworksEnv is the environment variable that lists the networks that auto uses, in the order
// to try them.
const NetworksEnv = "RINGNET_NETWORKS"

// Steering says which networks auto is to use.
type Steering struct {
	Better   []string // networks, in the order to try them; the others are switched off
	FallBack bool     // TCP may carry the connection
}

// Steer reads RINGNET_NETWORKS.
func Steer() (Steering, error) {
	value := os.Getenv(NetworksEnv)
	if value == "" {
		return Steering{Better: BetterThanTCP, FallBack: true}, nil
	}
	var s Steering
	for _, name := range strings.Split(value, ",") {
		switch {
		case s.FallBack:
			return s, fmt.Errorf("the environment variable %s is %q: tcp must come last", NetworksEnv, value)
		case name == "tcp":
			s.FallBack = true
		case slices.Contains(s.Better, name):
			return s, fmt.Errorf("the environment variable %s is %q: %s is named twice", NetworksEnv, value, name)
		case slices.Contains(BetterThanTCP, name):
			s.Better = append(s.Better, name)
		default:
			return s, fmt.Errorf("the environment variable %s is %q: want some of shm, rdma and tcp, separated by commas", NetworksEnv, value)
		}
	}
	return s, nil
}

// Require returns s with none but the networks that a field named Require has, if it has any.
// Then TCP may not carry the connection.
func (s Steering) Require(field string, networks []string) (Steering, error) {
	if len(networks) == 0 {
		return s, nil
	}
	for _, name := range networks {
		if !slices.Contains(BetterThanTCP, name) {
			return s, fmt.Errorf("%s has %q: want shm or rdma", field, name)
		}
	}
	s.FallBack = false
	s.Better = slices.DeleteFunc(slices.Clone(s.Better), func(name string) bool { return !slices.Contains(networks, name) })
	return s, nil
}

// isBetter reports whether a network is better than the one that carries a connection.
// RINGNET_NETWORKS decides if it names both.
func (s Steering) isBetter(network, carrier string) bool {
	if network == carrier || carrier == "tcp" {
		return network != carrier
	}
	i, j := slices.Index(s.Better, network), slices.Index(s.Better, carrier)
	if i < 0 || j < 0 {
		i, j = slices.Index(BetterThanTCP, network), slices.Index(BetterThanTCP, carrier)
	}
	return i < j
}
