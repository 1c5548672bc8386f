package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/rconn"
)

// Library is the library's own share of a message: one Write and one Read of
// LibraryBytes over a fabric that costs nothing, beside a bare cgo crossing.
type Library struct {
	Rounds []LibraryRound
	Error  string `json:",omitempty"`
}

// LibraryRound is in nanoseconds.
type LibraryRound struct {
	WriteRead   float64
	CgoCrossing float64
	Allocs      float64 // of one Write and one Read
}

const libraryBytes = 64

func measureLibrary(rounds int, slice time.Duration) *Library {
	l := new(Library)
	client, server, err := simulated()
	if err != nil {
		l.Error = err.Error()
		return l
	}
	defer client.Close()
	defer server.Close()
	if !haveCgo {
		l.Error = "built without cgo"
		return l
	}
	p := make([]byte, libraryBytes)
	writeRead := func(n int) error {
		for range n {
			if _, err := client.Write(p); err != nil {
				return err
			}
			if _, err := io.ReadFull(server, p); err != nil {
				return err
			}
		}
		return nil
	}
	for range rounds {
		var r LibraryRound
		var err error
		if r.WriteRead, r.Allocs, err = perOperation(slice, writeRead); err != nil {
			l.Error = err.Error()
			return l
		}
		r.CgoCrossing, _, _ = perOperation(slice, func(n int) error { cgoCrossings(n); return nil })
		l.Rounds = append(l.Rounds, r)
	}
	return l
}

// perOperation has do run for about a slice, and returns the nanoseconds and
// the allocations of one operation.
func perOperation(slice time.Duration, do func(n int) error) (ns, allocs float64, err error) {
	var before, after runtime.MemStats
	for n := 1000; ; n *= 4 {
		runtime.ReadMemStats(&before)
		start := time.Now()
		if err := do(n); err != nil {
			return 0, 0, err
		}
		elapsed := time.Since(start)
		runtime.ReadMemStats(&after)
		if elapsed >= slice/4 {
			return float64(elapsed) / float64(n), float64(after.Mallocs-before.Mallocs) / float64(n), nil
		}
	}
}

// simulated makes a connection in this process over queue pairs that hand a
// work request straight to the other side's completion queue.
func simulated() (client, server *rconn.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n := sim.New(sim.Link{})
	l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 1)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		ep, err := l.Accept()
		if err == nil {
			server, err = rconn.Server(ctx, "sim", ep, nil)
		}
		served <- err
	}()
	var ep fabric.Endpoint
	if ep, err = n.Dial(ctx, netip.AddrPort{}, l.Addr()); err == nil {
		client, err = rconn.Client(ctx, "sim", ep, nil)
	}
	if err != nil {
		l.Close()
	}
	if err = errors.Join(err, <-served); err != nil {
		return nil, nil, fmt.Errorf("a simulated connection: %w", err)
	}
	return client, server, nil
}
