package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet/internal/perf/workload"
)

// perfInterval is what has been moved in a part of the time of perf -t, or in all of it.
type perfInterval struct {
	From    float64 `json:"from"` // seconds since it began
	To      float64 `json:"to"`
	Network string  `json:"network"`
	Sent    uint64  `json:"sent"` // bytes
	Total   bool    `json:"total,omitempty"`
}

func (i perfInterval) print(s *streams) error {
	if s.json {
		return json.NewEncoder(s.out).Encode(i)
	}
	total := ""
	if i.Total {
		total = ", in all"
	}
	rate := humanize.Bytes(uint64(float64(i.Sent)/(i.To-i.From))) + "/s"
	_, err := fmt.Fprintf(s.out, "%5.1f to %5.1f s  %s  %12s%s\n", i.From, i.To, i.Network, rate, total)
	return err
}

// batchTime is how long a request to the server takes at least, when it is known how much that is.
const batchTime = 100 * time.Millisecond

// stream sends for the time of -t, or until it is interrupted, and says once a second how much.
func (c *perfCommand) stream(ctx context.Context, s *streams) error {
	size, conns, network := 64<<10, 1, "auto"
	if len(c.Sizes) > 0 {
		size = int(c.Sizes[0])
	}
	if len(c.Connections) > 0 {
		conns = c.Connections[0]
	}
	if len(c.Networks) > 0 {
		network = c.Networks[0]
	}
	client := newPerfClient(string(c.Address), c.Timeout)
	defer client.close()
	peers, _, err := client.find(ctx, []string{network})
	if err != nil {
		return err
	}
	session, err := workload.Stream.Open(workload.Client{Context: ctx, Dial: client.dialer(network), Conns: conns, Size: size})
	if err != nil {
		return err
	}
	defer session.Close()
	defer context.AfterFunc(ctx, session.Close)()
	var sent atomic.Uint64
	began := time.Now()
	ended := make(chan error, conns)
	var working sync.WaitGroup
	for worker := range conns {
		working.Go(func() {
			for n := 1; time.Since(began) < c.Time; {
				asked := time.Now()
				if err := session.Run(worker, n, nil); err != nil {
					session.Close() // the others are not to go on alone
					ended <- err
					return
				}
				sent.Add(uint64(n * size))
				if time.Since(asked) < batchTime {
					n *= 2
				}
			}
		})
	}
	go func() {
		working.Wait()
		close(ended)
	}()
	err = reportStream(s, peers[0].Key, began, &sent, ended)
	if ctx.Err() != nil {
		return nil // who has interrupted it has what was measured
	}
	return err
}

// reportStream prints a line once a second, until all have ended or one has failed, and then what
// it was in all.
func reportStream(s *streams, carrier string, began time.Time, sent *atomic.Uint64, ended <-chan error) error {
	last := perfInterval{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			now := perfInterval{To: time.Since(began).Seconds(), Network: carrier, Sent: sent.Load()}
			if err := (perfInterval{last.To, now.To, carrier, now.Sent - last.Sent, false}).print(s); err != nil {
				return err
			}
			last = now
		case err := <-ended:
			all := perfInterval{To: time.Since(began).Seconds(), Network: carrier, Sent: sent.Load(), Total: true}
			return errors.Join(all.print(s), err)
		}
	}
}
