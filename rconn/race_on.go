//go:build race

package rconn

import (
	"runtime"
	"unsafe"
)

// The race detector does not see that bytes which left one connection arrive
// at another through a device, and would report programs that are ordered by
// them. As package net does for its own connections, each Write is taken to
// happen before every later Read in the process.
var crossing byte

func raceRelease() { runtime.RaceReleaseMerge(unsafe.Pointer(&crossing)) }
func raceAcquire() { runtime.RaceAcquire(unsafe.Pointer(&crossing)) }
