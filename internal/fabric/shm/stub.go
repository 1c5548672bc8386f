//go:build !linux

package shm

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Fabric returns an error that wraps errors.ErrUnsupported: this system has no
// memory that one process can safely take from another.
func Fabric() (fabric.Fabric, error) { return New(Config{}) }

// OwnsTCP returns false: there is no endpoint whose peer could own a connection.
func OwnsTCP(uint32, netip.AddrPort, netip.AddrPort) bool { return false }

// New returns the error that [Fabric] does.
func New(Config) (fabric.Fabric, error) {
	return nil, fmt.Errorf("shared memory on %s: %w: only Linux has sealed memory files", runtime.GOOS, errors.ErrUnsupported)
}
