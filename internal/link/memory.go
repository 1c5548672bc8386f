package link

import (
	"sync"

	"github.com/ringnet/ringnet/internal/budget"
)

// linkMemory is what a link has registered. Guarded by Link.mu.
type linkMemory struct {
	account  *budget.Account // of all that is registered, and of the device's queues
	fixed    int             // bytes that it has reserved before it carries anything; does not change
	line     memoryLine
	trimming bool // a tick frees slabs

	registering sync.WaitGroup // calls of register and free; begun while the link is up
}
