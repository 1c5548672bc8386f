//go:build linux && cgo

package verbs

import (
	"context"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

var access = [...]rdmacore.Access{
	fabric.LocalWrite:  rdmacore.LocalWrite,
	fabric.RemoteWrite: rdmacore.RemoteWrite,
}

// Register implements [fabric.Endpoint].
func (e *endpoint) Register(n int, a fabric.Access) (fabric.Memory, error) {
	m, err := e.QueuePair.Register(n, access[a])
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Leave implements [fabric.Mover].
func (e *endpoint) Leave(m fabric.Memory) error { return e.QueuePair.Leave(m.(*rdmacore.Memory)) }

// Adopt implements [fabric.Mover].
func (e *endpoint) Adopt(m fabric.Memory) error { return e.QueuePair.Adopt(m.(*rdmacore.Memory)) }

// Footprint implements [fabric.Endpoint].
func (e *endpoint) Footprint(o fabric.Options) fabric.Footprint {
	return fabric.Footprint{
		Receives: fabric.Pages(mailboxMemory(o)),
		Queues:   fabric.DeviceQueues(o.SendQueue, o.RecvQueue),
		Locked:   true,
	}
}

// Reach implements [fabric.Endpoint]. The peer's device checks each write.
func (e *endpoint) Reach(context.Context, uint64, uint32, int) error { return nil }

// Reaches implements [fabric.Endpoint].
func (e *endpoint) Reaches(uint64, uint32, int) bool { return true }
