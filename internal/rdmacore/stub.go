//go:build !linux || !cgo

package rdmacore

import (
	"errors"
	"fmt"
	"runtime"
)

// CM is the connection manager, which no program of this build has.
type CM struct{}

// Open returns an error that wraps errors.ErrUnsupported: this build has no RDMA.
func Open(Config) (CM, error) {
	if runtime.GOOS != "linux" {
		return CM{}, fmt.Errorf("RDMA on %s: %w: only Linux is supported", runtime.GOOS, errors.ErrUnsupported)
	}
	return CM{}, fmt.Errorf("RDMA: %w: this program was built with CGO_ENABLED=0", errors.ErrUnsupported)
}
