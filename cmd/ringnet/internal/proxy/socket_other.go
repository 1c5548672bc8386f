//go:build !linux

package proxy

import "github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"

type socket struct{}

func newSocket(endpoint.Conn) *socket { return nil }
func (*socket) source() source        { return nil }
func (*socket) sink() sink            { return nil }
