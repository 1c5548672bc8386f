//go:build !unix

package rdmaudp

const msgTrunc = 0x20 // as on Linux
