package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet/internal/perf/workload"
)

// perfInterval is what has been moved in a part of the time of perf -t, or in all of it.
type perfInterval struct {
	From     float64 `json:"from"` // seconds since it began
	To       float64 `json:"to"`
	Network  string  `json:"network"`
	Sent     uint64  `json:"sent"`     // bytes
	Received uint64  `json:"received"` // bytes
	Total    bool    `json:"total,omitempty"`

	PassedOver []reason `json:"passed_over,omitempty"` // in all: why auto does not use better networks
}

func (i perfInterval) print(s *streams) error {
	if s.json {
		return json.NewEncoder(s.out).Encode(i)
	}
	rate := func(n uint64) string { return humanize.Bytes(uint64(float64(n)/(i.To-i.From))) + "/s" }
	total := ""
	if i.Total {
		total = ", in all"
	}
	_, err := fmt.Fprintf(s.out, "%5.1f to %5.1f s  %s  %12s sent  %12s received%s\n", i.From, i.To, i.Network, rate(i.Sent), rate(i.Received), total)
	return err
}

// perfStreams are those of perf -t. Each request to the server is for about streamBatch bytes.
type perfStreams struct {
	size, batch    int // bytes of a message, messages of a request
	sent, received atomic.Uint64
	stopped        atomic.Bool
}

const streamBatch = 8 << 20

// stream moves bytes for the time of -t, or until it is interrupted, and says once a second how many.
func (c *perfCommand) stream(ctx context.Context, s *streams) error {
	size, conns := int(c.Sizes[0]), c.Connections[0]
	client := newPerfClient(string(c.Address), c.Timeout)
	defer client.close()
	peers, passed, err := client.find(ctx, c.Networks)
	if err != nil {
		return err
	}
	if !s.json {
		printPassed(s.out, passed)
	}
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &perfStreams{size: size, batch: max(streamBatch/size, 1)}
	var works []func(c net.Conn) error
	if !c.Reverse {
		works = append(works, p.send)
	}
	if c.Reverse || c.Both {
		works = append(works, p.receive)
	}
	all, closeAll, err := workload.OpenAll(conns*len(works), func() (net.Conn, error) { return client.dialer(c.Networks[0])(working) })
	if err != nil {
		return err
	}
	defer closeAll()
	defer context.AfterFunc(working, closeAll)()
	stop := time.AfterFunc(c.Time, func() { p.stopped.Store(true) })
	defer stop.Stop()
	ended := make(chan error, 1)
	go func() {
		err := p.work(all, works, cancel)
		if ctx.Err() != nil {
			err = nil // who has interrupted it has what was measured
		}
		ended <- err
	}()
	return p.report(s, peers[0].Key, passed, ended)
}

// work has the connections do the works in turn until all are stopped, or one has failed.
func (p *perfStreams) work(all []net.Conn, works []func(net.Conn) error, cancel func()) error {
	errs := make([]error, len(all))
	var working sync.WaitGroup
	for i, conn := range all {
		working.Go(func() {
			for !p.stopped.Load() && errs[i] == nil {
				errs[i] = works[i%len(works)](conn)
			}
			if errs[i] != nil {
				cancel() // the others are not to go on alone
			}
		})
	}
	working.Wait()
	return errors.Join(errs...)
}

// report prints a line once a second, until the work has ended, and then what it was in all.
func (p *perfStreams) report(s *streams, carrier string, passed []reason, ended <-chan error) error {
	began, last := time.Now(), perfInterval{Network: carrier}
	part := func() perfInterval { // since the last
		now := perfInterval{To: time.Since(began).Seconds(), Network: carrier, Sent: p.sent.Load(), Received: p.received.Load()}
		since := perfInterval{From: last.To, To: now.To, Network: carrier, Sent: now.Sent - last.Sent, Received: now.Received - last.Received}
		last = now
		return since
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := part().print(s); err != nil {
				return err
			}
		case err := <-ended:
			part()
			last.Total, last.PassedOver = true, passed
			return errors.Join(last.print(s), err)
		}
	}
}

// send makes a request for bytes that the server reads.
func (p *perfStreams) send(c net.Conn) error {
	buf := make([]byte, p.size)
	if err := workload.Request(c, workload.Sink, p.size, p.batch); err != nil {
		return err
	}
	for range p.batch {
		n, err := c.Write(buf)
		p.sent.Add(uint64(n))
		if err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c, buf[:1])
	return err
}

// receive makes a request for bytes that the server sends.
func (p *perfStreams) receive(c net.Conn) error {
	buf := make([]byte, max(p.size, 64<<10))
	if err := workload.Request(c, workload.Source, p.size, p.batch); err != nil {
		return err
	}
	for left := p.size * p.batch; left > 0; {
		n, err := c.Read(buf[:min(left, len(buf))])
		p.received.Add(uint64(n))
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}
