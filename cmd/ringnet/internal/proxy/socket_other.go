//go:build !linux

package proxy

import "github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"

func socketSource(endpoint.Conn) source { return nil }
func socketSink(endpoint.Conn) sink     { return nil }
