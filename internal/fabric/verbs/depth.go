//go:build linux && cgo

package verbs

// How deep the queues of an endpoint are. A provider does not tell its limit: therefore createQueues
// asks for less until the provider succeeds. If it fails for a shortage, because others have the
// memory, it is not asked for less: see [rdmacore.IsShortage].

import (
	"errors"
	"fmt"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

// leastSends and leastRecvs are the least depths worth asking for: a link does not
// work with less.
const (
	leastSends = 16
	leastRecvs = 18
)

// makeShallower halves the longer queue. It returns false if that has its least depth.
func makeShallower(o *fabric.Options) bool {
	longer, least := &o.SendQueue, leastSends
	if o.RecvQueue > o.SendQueue {
		longer, least = &o.RecvQueue, leastRecvs
	}
	if *longer <= least {
		return false
	}
	*longer = max(*longer/2, least)
	return true
}

// createQueues makes the completion queue and the queue pair. It reduces inline data
// before depth: inline data is what devices refuse, while the depth is what the program
// has asked for. If there is no memory for the depth, createQueues fails instead of
// reducing it.
func (e *endpoint) createQueues() error {
	for {
		sends, recvs := e.options.SendQueue, e.options.RecvQueue
		err := e.CreateCompletionQueue(sends + recvs)
		if err == nil {
			err = e.Create(rdmacore.RC, sends, recvs)
		}
		switch {
		case err == nil, errors.Is(err, fabric.ErrDeviceRemoved):
			return err
		case rdmacore.IsShortage(err):
			return fmt.Errorf("no queues of %d sends and %d receives now, though shorter ones may be had: %w", sends, recvs, err)
		case !makeShallower(&e.options):
			return fmt.Errorf("the device refuses even queues of %d sends and %d receives: %w", sends, recvs, err)
		}
	}
}
