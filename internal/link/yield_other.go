//go:build !linux

package link

// yieldThread lets other threads have the processor, where that is possible.
func yieldThread() {}
