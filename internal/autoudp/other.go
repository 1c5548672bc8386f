//go:build !unix

package autoudp

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Fabric implements [fabric.Datagrams].
type Fabric struct{ Carriers []Carrier }

// Carrier is a way beside UDP.
type Carrier struct {
	Name string // "shm-udp" or "rdma-udp"
	fabric.Datagrams
}

var errUnsupported = fmt.Errorf("auto-udp on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// ListenPacket returns an error that wraps errors.ErrUnsupported.
func (f *Fabric) ListenPacket(netip.AddrPort, fabric.DatagramOptions) (fabric.DatagramEndpoint, error) {
	return nil, errUnsupported
}

// Source returns the same error.
func (f *Fabric) Source(netip.AddrPort) (netip.Addr, error) { return netip.Addr{}, errUnsupported }
