//go:build !unix

package workload

import "time"

// cpuTime is 0, which means that it is not known.
func cpuTime() time.Duration { return 0 }
