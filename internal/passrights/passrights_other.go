//go:build !linux

package passrights

import "syscall"

// Refuse does nothing: this system cannot forbid it.
func Refuse(_, _ string, _ syscall.RawConn) error { return nil }
