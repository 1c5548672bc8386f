//go:build !linux || !cgo

package ud

import "github.com/ringnet/ringnet/internal/rdmacore"

// Open returns an error that wraps errors.ErrUnsupported: this build has no RDMA.
func Open(int) (Fabric, error) {
	_, err := rdmacore.Open(rdmacore.Config{})
	return nil, err
}
