//go:build !unix

package perf

import "time"

// cpuTime is not known.
func cpuTime() time.Duration { return 0 }
