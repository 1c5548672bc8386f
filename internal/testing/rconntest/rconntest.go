// Package rconntest makes connections of endpoints, for tests.
package rconntest

import (
	"context"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// Config is what a program knows as ringnet.Config.
type Config = link.Config

// Client makes a connection, with a link of its own, from an endpoint that was dialed. It owns
// the endpoint from then on, and closes it if it fails. network is the network of the
// connection's addresses. Client fails when ctx ends, and after Config.HandshakeTimeout.
func Client(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config) (*rconn.Conn, error) {
	return connect(ctx, network, ep, cfg, link.Dial)
}

// Server makes a connection from an endpoint that a listener accepted; otherwise it is like
// Client.
func Server(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config) (*rconn.Conn, error) {
	return connect(ctx, network, ep, cfg, func(ctx context.Context, ep fabric.Endpoint, cfg link.Setup) (*link.Stream, error) {
		_, s, err := link.Accept(ctx, ep, cfg)
		return s, err
	})
}

func connect(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config,
	open func(context.Context, fabric.Endpoint, link.Setup) (*link.Stream, error)) (*rconn.Conn, error) {
	own, err := link.NewSetup(cfg)
	if err != nil {
		_ = ep.Close()
		return nil, err
	}
	own.Network, own.Dedicated = network, true
	s, err := open(ctx, ep, own)
	if err != nil {
		return nil, err
	}
	return rconn.New(s, nil), nil
}
