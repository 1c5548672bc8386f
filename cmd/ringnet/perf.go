package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

type perfCommand struct {
	Address     hostPort      `arg:"" optional:"" name:"host:port" help:"Where ringnet perf --listen is."`
	Listen      hostPort      `placeholder:"HOST:PORT" help:"Be the other end, over all networks that this host has, as in :7473. It serves one client at a time, whoever connects."`
	Time        time.Duration `short:"t" placeholder:"TIME" help:"Measure no table: stream for so long, and tell the rate once a second."`
	Reverse     bool          `short:"R" help:"With -t, the server sends."`
	Both        bool          `help:"With -t, both send."`
	Networks    []string      `enum:"auto,shm,rdma,tcp" placeholder:"NETWORK" help:"Measure these side by side: auto (what carries its connections), shm, rdma, tcp (auto,tcp; with -t auto)."`
	Sizes       []byteSize    `placeholder:"SIZE" help:"With messages of these sizes (64,4KiB,64KiB; with -t 64KiB)."`
	Connections []int         `placeholder:"N" help:"Over so many connections at once (1,16; with -t 1)."`
	Rounds      int           `default:"7" help:"Measure everything so often (${default}). From 6 on there are intervals of confidence."`
	Slice       time.Duration `default:"100ms" help:"Measure each thing in each round for about so long (${default}), at most 10s."`
	Timeout     time.Duration `default:"5s" help:"Wait so long for a connection or an answer (${default})."`
	Polling     pollingFlags  `embed:""`
}

// What a server of perf allows.
const (
	maxPerfSize        = 16 << 20 // bytes of a message
	maxPerfConnections = 256      // of a client at once
	maxPerfSlice       = 10 * time.Second
)

// byteSize is a number of bytes, on the command line as people write it.
type byteSize int

// UnmarshalText reads 64, 4KiB, 1MB.
func (b *byteSize) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n < 1 || n > maxPerfSize {
		return fmt.Errorf("%q: want a size from 1 to 16MiB, as in 64, 4KiB or 1MiB", text)
	}
	*b = byteSize(n)
	return nil
}

// Run serves or measures.
func (c *perfCommand) Run(ctx context.Context, s *streams, k *kong.Context) error {
	switch {
	case (c.Address == "") == (c.Listen == ""):
		return misuseError{errors.New("want HOST:PORT to connect to, or --listen HOST:PORT to be the other end")}
	case c.Listen != "" && given(k, "time", "reverse", "both", "networks", "sizes", "connections", "rounds", "slice", "timeout"):
		return misuseError{errors.New("--listen wants no flags of what to measure: the client has them")}
	case c.Listen != "":
		return servePerf(ctx, c.Listen, s.logger(false))
	case c.Time < 0 || given(k, "time") && c.Time == 0:
		return misuseError{fmt.Errorf("-t %v: want a time above 0", c.Time)}
	case c.Time == 0 && (c.Reverse || c.Both):
		return misuseError{errors.New("--reverse and --both are for -t TIME")}
	case c.Reverse && c.Both:
		return misuseError{errors.New("--both includes --reverse")}
	case c.Time > 0 && (len(c.Networks) > 1 || len(c.Sizes) > 1 || len(c.Connections) > 1):
		return misuseError{errors.New("-t measures one network, with one size, over one number of connections")}
	case c.Time > 0 && given(k, "rounds", "slice"):
		return misuseError{errors.New("-t measures once, for its time: --rounds and --slice are for the table")}
	case twice(c.Networks) || twice(c.Sizes) || twice(c.Connections):
		return misuseError{errors.New("--networks, --sizes and --connections want each value once")}
	case c.Rounds < 1 || c.Slice <= 0 || c.Timeout <= 0 || len(c.Connections) > 0 && slices.Min(c.Connections) < 1:
		return misuseError{errors.New("--connections, --rounds, --slice and --timeout want positive values")}
	case c.Slice > maxPerfSlice:
		return misuseError{fmt.Errorf("--slice wants %v at most: --rounds can be more", maxPerfSlice)}
	case len(c.Connections) > 0 && slices.Max(c.Connections) > maxPerfConnections:
		return misuseError{fmt.Errorf("--connections wants %d at most", maxPerfConnections)}
	case c.Time > 0:
		c.setDefaults([]string{"auto"}, []byteSize{64 << 10}, []int{1})
		return c.stream(ctx, s)
	}
	c.setDefaults([]string{"auto", "tcp"}, []byteSize{64, 4 << 10, 64 << 10}, []int{1, 16})
	return c.measure(ctx, s)
}

// setDefaults sets what was not given.
func (c *perfCommand) setDefaults(networks []string, sizes []byteSize, conns []int) {
	if len(c.Networks) == 0 {
		c.Networks = networks
	}
	if len(c.Sizes) == 0 {
		c.Sizes = sizes
	}
	if len(c.Connections) == 0 {
		c.Connections = conns
	}
}

// measure does the client's part.
func (c *perfCommand) measure(ctx context.Context, s *streams) error {
	client := newPerfClient(string(c.Address), c.Timeout)
	defer client.close()
	r := new(perfReport)
	r.Base = "tcp"
	var err error
	if r.Peers, r.PassedOver, err = client.find(ctx, c.Networks); err != nil {
		return err
	}
	show := report.NewProgress(s.err).OnlyOnTerminal()
	r.Server = client.server
	r.Begin(c.Rounds, c.Slice)
	runner := &workload.Runner{Slice: c.Slice, Usage: client.usages, Note: show.Note}
	err = r.Measure(ctx, c.cells(r.Peers), func(cell report.Cell) (report.Sample, error) {
		return runner.Measure(ctx, cell, perfWorkload(cell.Workload), client.dialer(cell.Peer))
	}, show, func() {})
	if err != nil {
		return err
	}
	if s.json {
		err = writeJSON(s.out, r)
	} else {
		r.print(s.out)
	}
	return errors.Join(err, r.Failure())
}

var perfWorkloads = []*workload.Workload{&workload.Connect, &workload.PingPong, &workload.Stream}

func perfWorkload(key string) *workload.Workload {
	return perfWorkloads[slices.IndexFunc(perfWorkloads, func(w *workload.Workload) bool { return w.Key == key })]
}

// cells are what to measure. Those that differ in the network alone are neighbours.
func (c *perfCommand) cells(peers []report.Peer) (cells []report.Cell) {
	for _, w := range perfWorkloads {
		sizes := c.Sizes
		if !w.Sized {
			sizes = []byteSize{0}
		}
		for _, conns := range c.Connections {
			for _, size := range sizes {
				for _, p := range peers {
					if p.Unavailable == "" {
						cells = append(cells, report.Cell{Peer: p.Key, Workload: w.Key, Size: int(size), Conns: conns})
					}
				}
			}
		}
	}
	return cells
}

// perfClient is a client of ringnet perf --listen.
type perfClient struct {
	name    string // by which the server knows all its connections
	timeout time.Duration
	dials   map[string]dialFunc // by network; connections of one share links

	control endpoint.Conn // which stays open, and by which the server reports its usage; nil at first
	server  report.Machine
}

type dialFunc = func(context.Context) (endpoint.Conn, []ringnet.Reason, error)

func newPerfClient(address string, timeout time.Duration) *perfClient {
	c := &perfClient{name: rand.Text(), timeout: timeout, dials: make(map[string]dialFunc)}
	for _, network := range []string{"auto", "shm", "rdma", "tcp"} {
		c.dials[network] = endpoint.Endpoint{Network: network, Address: address}.Dialer(endpoint.Options{})
	}
	return c
}

// find finds out over which of the networks the server can be reached. It replaces auto by the
// network that carries its connections, and returns the reasons why no better one does. The first
// connection that it makes becomes the control connection: by default that of TCP, which takes
// least of the processors.
func (c *perfClient) find(ctx context.Context, networks []string) (peers []report.Peer, passed []reason, err error) {
	var unavailable []string
	for _, network := range slices.Backward(networks) {
		conn, server, reasons, err := c.connect(ctx, network)
		if err != nil {
			peers = append(peers, report.Peer{Key: network, Name: network, Unavailable: endpoint.Printable(err.Error())})
			unavailable = append(unavailable, fmt.Sprintf("over %s: %v", network, err))
			continue
		}
		carrier := endpoint.NetworkOf(conn)
		if !slices.ContainsFunc(peers, func(p report.Peer) bool { return p.Key == carrier }) {
			peers = append(peers, report.Peer{Key: carrier, Name: carrier})
		}
		for _, r := range reasons {
			passed = append(passed, newReason(r))
		}
		if c.control == nil {
			c.control, c.server = conn, server
		} else {
			_ = conn.Close()
		}
	}
	if c.control == nil {
		return nil, nil, fmt.Errorf("the server cannot be reached: %s", strings.Join(unavailable, "; "))
	}
	slices.Reverse(peers)
	return peers, passed, nil
}

// dialer returns a function that makes connections over a network.
func (c *perfClient) dialer(network string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		conn, _, _, err := c.connect(ctx, network)
		return conn, err
	}
}

// connect connects over a network, and does the client's part of the handshake. Several
// goroutines may call it.
func (c *perfClient) connect(ctx context.Context, network string) (endpoint.Conn, report.Machine, []ringnet.Reason, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, reasons, err := c.dials[network](ctx)
	if err != nil {
		return nil, report.Machine{}, nil, err
	}
	server, err := c.enter(conn)
	if err != nil {
		endpoint.Reset(conn)
		return nil, report.Machine{}, nil, err
	}
	return conn, server, reasons, nil
}

// enter returns what the server's machine is.
func (c *perfClient) enter(conn net.Conn) (report.Machine, error) {
	if err := conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return report.Machine{}, err
	}
	if _, err := fmt.Fprintf(conn, "%s%s\n", perfHello, c.name); err != nil {
		return report.Machine{}, err
	}
	var w perfWelcome
	line, err := bufio.NewReaderSize(conn, maxPerfLine).ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &w)
	}
	switch {
	case err != nil:
		return report.Machine{}, fmt.Errorf("want ringnet perf --listen there, which would say so: %w", err)
	case w.Error != "":
		return report.Machine{}, errors.New(endpoint.Printable(w.Error))
	}
	return w.Machine, conn.SetDeadline(time.Time{})
}

// usages returns what both processes have used so far.
func (c *perfClient) usages() (client, server workload.Usage, err error) {
	err = errors.Join(
		c.control.SetDeadline(time.Now().Add(c.timeout)),
		workload.Request(c.control, perfUsage, 0, 0),
		binary.Read(c.control, binary.LittleEndian, &server))
	return workload.OwnUsage(), server, err
}

// close returns when the server has noticed it.
func (c *perfClient) close() {
	if c.control == nil {
		return
	}
	_ = c.control.SetDeadline(time.Now().Add(c.timeout))
	if c.control.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, c.control)
	}
	_ = c.control.Close()
}
