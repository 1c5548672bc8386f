//go:build !linux || !cgo

package verbs

import (
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

// New returns an error that wraps errors.ErrUnsupported: this build has no RDMA.
func New(Config) (fabric.Fabric, error) {
	_, err := rdmacore.Open(rdmacore.Config{})
	return nil, err
}
