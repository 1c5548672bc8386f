//go:build unix

package rdmaudp

import "syscall"

const msgTrunc = syscall.MSG_TRUNC
