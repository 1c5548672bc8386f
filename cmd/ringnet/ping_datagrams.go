package main

// ringnet ping --datagram.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

// pingToken is the token of all servers of ringnet ping.
const pingToken = 0x31676e6970676e72 // "rngping1"

// packetNetworks are the networks to answer on. The first chooses the port: UDP, where other
// programs may have it.
var packetNetworks = []string{"udp", "shm-udp", "rdma-udp"}

// answerDatagrams answers pings until the context ends: on auto over all networks that this
// host has, at the same port.
func (c *pingCommand) answerDatagrams(ctx context.Context, s *streams) error {
	networks := packetNetworks
	if only, ok := endpoint.Packets[c.Listen.Network]; ok {
		networks = []string{only}
	} else if c.Listen.Network != "auto" {
		return misuseError{errors.New("--datagram --listen wants auto, shm, rdma or tcp")}
	}
	log := s.logger(false)
	address := c.Listen.Address
	var sockets []endpoint.PacketConn
	var errs []error
	for _, network := range networks {
		conn, err := endpoint.ListenPacket(ctx, network, address)
		if err != nil {
			log.Info("does not answer", "network", network, "error", err)
			errs = append(errs, err)
			continue
		}
		defer conn.Close()
		sockets = append(sockets, conn)
		if host, port, err := net.SplitHostPort(address); err == nil && port == "0" {
			address = net.JoinHostPort(host, strconv.Itoa(int(portOf(conn.LocalAddr()))))
		}
	}
	if len(sockets) == 0 {
		return errors.Join(errs...)
	}
	for _, conn := range sockets {
		log.Info("answers", "network", conn.LocalAddr().Network(), "address", conn.LocalAddr().String())
	}
	ended := make(chan error)
	for _, conn := range sockets {
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		go func() { ended <- (&datagramServer{conn: conn, token: pingToken}).serve() }()
	}
	for range sockets {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

// pingDatagrams measures over the network of datagrams that uses the same device as
// network.
func (c *pingCommand) pingDatagrams(ctx context.Context, network string, progress *perf.Progress) pingResult {
	r := pingResult{Network: endpoint.Packets[network]}
	conn, err := endpoint.DialPacket(ctx, r.Network, string(c.Address))
	if err != nil {
		r.Error = err.Error()
		return r
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	times, lost, err := c.datagramRoundTrips(ctx, conn, func(n int) { progress.Show("%s: %d of %d round trips", r.Network, n, c.Count) })
	if len(times) == 0 {
		r.Error = err.Error()
		if !errors.Is(err, syscall.EMSGSIZE) {
			r.Error += ": want ringnet ping --datagram --listen there"
		}
		return r
	}
	r.First, r.RoundTrip, r.Lost = micros(times[0]), newSpread(times), lost
	r.end(ctx, err)
	return r
}

// datagramRoundTrips returns the times of the round trips that were not lost, up to the
// first that fails, or until ctx ends, and how many were lost. It calls show as roundTrips
// does.
func (c *pingCommand) datagramRoundTrips(ctx context.Context, conn net.Conn, show func(int)) (times []time.Duration, lost int, err error) {
	wait := min(c.Timeout, answerWithin)
	sent, got := make([]byte, c.Size), make([]byte, c.Size)
	silentSince := time.Now()
	shown := silentSince
	for i := 0; i < c.Count && ctx.Err() == nil; i++ {
		began := time.Now()
		if began.Sub(shown) >= tripsShown {
			show(i)
			shown = began
		}
		if err := conn.SetReadDeadline(began.Add(wait)); err != nil {
			return times, lost, err
		}
		putDatagramHeader(sent, pingToken, datagramEcho, uint32(i))
		if _, err := conn.Write(sent); err != nil {
			return times, lost, err
		}
		err := awaitAnswer(conn, got, uint32(i))
		now := time.Now()
		switch {
		case err == nil:
			times, silentSince = append(times, now.Sub(began)), now
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return times, lost, err
		case now.Sub(silentSince) >= c.Timeout:
			return times, lost + 1, fmt.Errorf("no answers for %v", c.Timeout)
		default:
			lost++
		}
	}
	if len(times) == 0 {
		return nil, lost, fmt.Errorf("no answer to any of %d datagrams", lost)
	}
	return times, lost, nil
}

func (c *pingCommand) printDatagrams(w io.Writer, results []pingResult) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if slices.ContainsFunc(results, pingResult.reached) {
		fmt.Fprintf(t, "\tfirst\tlost\tround trip of %s, min\tmedian\tp90\tp99\tmax\t\n", perf.Size(c.Size))
	}
	for _, r := range results {
		if s := r.RoundTrip; r.reached() {
			fmt.Fprintf(t, "%s\t%s\t%d of %d\t%s\t%s\t%s\t%s\t%s\t\n", r.Network, inMicros(r.First), r.Lost, r.Lost+s.Count,
				inMicros(s.Min), s.center(), inMicros(s.P90), inMicros(s.P99), inMicros(s.Max))
		}
	}
	_ = t.Flush()
	printFailures(w, results)
}
