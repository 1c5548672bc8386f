//go:build !linux

package inspect

import (
	"context"
	"errors"
	"fmt"
)

// listen does nothing: there is no network here of which ss would not tell.
func (a *Answerer) listen() {}

var errUnsupported = fmt.Errorf("processes can be asked on Linux alone: %w", errors.ErrUnsupported)

// Ask returns an error: see the one for Linux.
func Ask(context.Context, string) (all []Process, others int, failed []error, err error) {
	return nil, 0, nil, errUnsupported
}

// Kill returns an error: see the one for Linux.
func Kill(context.Context, int, uint64) error { return errUnsupported }
