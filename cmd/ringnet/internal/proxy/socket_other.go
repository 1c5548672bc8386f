//go:build !linux

package proxy

import "github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"

func newSocket(endpoint.Conn) carrier { return nil }
