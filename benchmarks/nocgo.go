//go:build !cgo

package main

import (
	"context"
	"errors"
	"net"
)

const haveCgo = false

func cgoCrossings(int) {}

var errNoRsockets = errors.New("built without cgo")

func listenRsocket(string) (net.Listener, error)            { return nil, errNoRsockets }
func dialRsocket(context.Context, string) (net.Conn, error) { return nil, errNoRsockets }
