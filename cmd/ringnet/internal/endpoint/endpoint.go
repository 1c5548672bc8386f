// Package endpoint listens and dials at the URLs that users of the command write:
// auto://:6380, tcp://127.0.0.1:6379, unix:///run/redis.sock.
package endpoint

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
)

// Ringnet are the networks of package ringnet.
var Ringnet = []string{"auto", "auto4", "auto6", "shm", "rdma", "rdma4", "rdma6"}

// standard are those of package net.
var standard = []string{"tcp", "tcp4", "tcp6", "unix"}

// Endpoint is a valid network and a valid address there.
type Endpoint struct {
	Network, Address string
}

// UnmarshalText reads an endpoint as it is written on the command line.
func (e *Endpoint) UnmarshalText(text []byte) error {
	s := string(text)
	network, address, ok := strings.Cut(s, "://")
	switch {
	case !ok:
		return fmt.Errorf("%q: want NETWORK://HOST:PORT, as in auto://:6380, or unix:///PATH", s)
	case network == "unix":
		if !filepath.IsAbs(address) {
			return fmt.Errorf("%q: want an absolute path after unix://, as in unix:///run/redis.sock", s)
		}
	case slices.Contains(Ringnet, network) || slices.Contains(standard, network):
		if err := CheckHostPort(address); err != nil {
			return fmt.Errorf("%q: want HOST:PORT after %s://, with [] around an IPv6 address: %w", s, network, err)
		}
	default:
		return fmt.Errorf("%q: unknown network %q: want one of %s", s, network,
			strings.Join(slices.Concat(Ringnet, standard), ", "))
	}
	*e = Endpoint{network, address}
	return nil
}

// CheckHostPort returns an error unless an address is a host and a port that can be.
func CheckHostPort(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err
}

func (e Endpoint) String() string { return e.Network + "://" + e.Address }

// IsAuto reports whether e is on auto, where one of several networks carries each
// connection.
func (e Endpoint) IsAuto() bool { return strings.HasPrefix(e.Network, "auto") }

// IsRingnet reports whether e is on a network of package ringnet.
func (e Endpoint) IsRingnet() bool { return slices.Contains(Ringnet, e.Network) }
