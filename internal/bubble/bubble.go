// Package bubble tells whether the caller is in a bubble of testing/synctest. Go ends a process in which
// timers and channels of a bubble are used outside of it, so what a bubble uses is not shared with others.
package bubble

import (
	"errors"
	"fmt"
	"time"
)

// In reports whether the caller is in a bubble: there no time has a monotonic clock reading.
func In() bool {
	now := time.Now()
	return now == now.Round(0)
}

// RefuseRDMA returns an error in a bubble: the process's goroutines take what the connection manager tells.
func RefuseRDMA() error {
	if In() {
		return fmt.Errorf("RDMA in a bubble of testing/synctest: %w", errors.ErrUnsupported)
	}
	return nil
}
