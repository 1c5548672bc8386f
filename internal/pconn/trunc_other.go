//go:build !unix

package pconn

const msgTrunc = 0x20 // as on Linux
