//go:build !linux

package proxy

import (
	"sync/atomic"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

type socket struct{}

func newSocket(endpoint.Conn) *socket    { return nil }
func (*socket) source() source           { return nil }
func (*socket) sink(*atomic.Uint64) sink { return nil }
func (*socket) lostBy() error            { return nil }
func (*socket) queued() uint64           { return 0 }
