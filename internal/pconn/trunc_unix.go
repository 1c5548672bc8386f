//go:build unix

package pconn

import "syscall"

const msgTrunc = syscall.MSG_TRUNC
