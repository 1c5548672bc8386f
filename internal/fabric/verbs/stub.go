//go:build !linux || !cgo

package verbs

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/ringnet/ringnet/internal/fabric"
)

// New returns an error that wraps errors.ErrUnsupported: this build has no RDMA.
func New(Config) (fabric.Fabric, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("RDMA on %s: %w: only Linux is supported", runtime.GOOS, errors.ErrUnsupported)
	}
	return nil, fmt.Errorf("RDMA: %w: this program was built with CGO_ENABLED=0", errors.ErrUnsupported)
}

// Fabric returns the error of [New].
func Fabric() (fabric.Fabric, error) { return New(Config{}) }
