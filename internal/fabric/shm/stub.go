//go:build !linux

package shm

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/ringnet/ringnet/internal/fabric"
)

// Fabric returns an error that wraps errors.ErrUnsupported: this system has no
// memory that one process can safely take from another.
func Fabric() (fabric.Fabric, error) { return New(Config{}) }

// New returns the error that [Fabric] does.
func New(Config) (fabric.Fabric, error) {
	return nil, fmt.Errorf("shared memory on %s: %w: only Linux has sealed memory files", runtime.GOOS, errors.ErrUnsupported)
}
