package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ringnet/ringnet/internal/fabric/direct"
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
	client, server, err := directly()
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
			if n, err := server.Read(p); n != len(p) || err != nil {
				return fmt.Errorf("read of %d bytes: %d, %w", len(p), n, err)
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

// perOperation runs do for about a slice, and returns the nanoseconds and the allocations
// of one operation.
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

// directly makes a connection in this process over package direct.
func directly() (client, server *rconn.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dialing, listening := direct.Pair()
	served := make(chan error, 1)
	go func() {
		var err error
		server, err = rconn.Server(ctx, "direct", listening, nil)
		served <- err
	}()
	client, err = rconn.Client(ctx, "direct", dialing, nil)
	if err = errors.Join(err, <-served); err != nil {
		return nil, nil, fmt.Errorf("a connection over the direct fabric: %w", err)
	}
	return client, server, nil
}
