//go:build !linux

package rconn

import "errors"

// show is for Linux alone, as are the networks of these connections.
func show([]byte, error, func(fd uintptr) bool) (taken int, done bool, err error) {
	return 0, false, errors.ErrUnsupported
}
