//go:build race

// Package crossing tells the race detector what it does not see: that bytes which
// left one connection arrive at another through a device. It would report programs
// that are ordered by them. As package net does for its own connections, each Write is
// taken to happen before every later Read in the process.
package crossing

import (
	"runtime"
	"unsafe"
)

var crossing byte

// Release is called by each Write before it does anything.
func Release() { runtime.RaceReleaseMerge(unsafe.Pointer(&crossing)) }

// Acquire is called by each Read when it has its bytes.
func Acquire() { runtime.RaceAcquire(unsafe.Pointer(&crossing)) }
