package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

type perfCommand struct {
	Address     hostPort      `arg:"" optional:"" name:"host:port" help:"Where ringnet perf --listen is."`
	Networks    []string      `enum:"auto,shm,rdma,tcp" default:"auto,tcp" placeholder:"NETWORK" help:"Measure these side by side: auto (what carries its connections), shm, rdma, tcp (${default})."`
	Datagram    bool          `help:"Measure datagrams: of shm, rdma and tcp their shm-udp, rdma-udp and udp, and of auto all that there are."`
	Sizes       []byteSize    `placeholder:"SIZE" help:"With messages of these sizes, such as 64, 4KiB, 1MiB (64,4KiB,64KiB; of datagrams 64,1KiB)."`
	Connections []int         `default:"1,16" placeholder:"N" help:"Over so many connections at once (${default})."`
	Rounds      int           `default:"7" help:"Measure everything so often (${default}). From 6 on there are intervals of confidence."`
	Slice       time.Duration `default:"100ms" help:"Measure each thing in each round for about so long (${default}), at most 10s."`
	Timeout     time.Duration `default:"5s" help:"Wait so long for a connection or an answer (${default})."`
	Polling     pollingFlags  `embed:""`
	SVG         string        `name:"svg" placeholder:"DIR" help:"Draw charts into this folder."`

	Listen         *listenURL    `placeholder:"NETWORK://HOST:PORT" help:"Be the other end, as in auto://:7473, with TCP beside it. It serves one client at a time, whoever connects."`
	MaxSize        byteSize      `default:"1MiB" help:"With --listen, the largest message that a client may ask for (${default})."`
	MaxConnections int           `default:"128" help:"With --listen, the most connections of a client (${default})."`
	MaxTime        time.Duration `default:"10m" help:"With --listen, the longest that a client may take (${default})."`
}

// byteSize is a number of bytes, on the command line as people write it.
type byteSize int

// maxByteSize is the largest size.
const maxByteSize = 1 << 30

// UnmarshalText reads 64, 4KiB, 1MB.
func (b *byteSize) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n < 1 || n > maxByteSize {
		return fmt.Errorf("%q: want a size from 1 to 1GiB, as in 64, 4KiB or 1MiB", text)
	}
	*b = byteSize(n)
	return nil
}

// Run serves or measures.
func (c *perfCommand) Run(ctx context.Context, s *streams) error {
	switch {
	case (c.Address == "") == (c.Listen == nil):
		return misuseError{errors.New("want HOST:PORT to connect to, or --listen NETWORK://HOST:PORT to be the other end")}
	case c.MaxConnections < 1 || c.MaxTime <= 0:
		return misuseError{errors.New("--max-connections and --max-time want positive values")}
	case c.Listen != nil:
		return c.serve(ctx, s)
	case c.Rounds < 1 || c.Slice <= 0 || c.Timeout <= 0 || len(c.Connections) == 0 || slices.Min(c.Connections) < 1:
		return misuseError{errors.New("--connections, --rounds, --slice and --timeout want positive values")}
	case c.Slice > maxSlice:
		return misuseError{fmt.Errorf("--slice wants %v at most: --rounds can be more", maxSlice)}
	}
	if len(c.Sizes) == 0 {
		c.Sizes = []byteSize{64, 4 << 10, 64 << 10}
		if c.Datagram {
			c.Sizes = []byteSize{64, 1 << 10}
		}
	}
	if c.Datagram && (slices.Min(c.Sizes) < datagramHeader || slices.Max(c.Sizes) > maxDatagram) {
		return misuseError{fmt.Errorf("--sizes of datagrams are from %d to %d", datagramHeader, maxDatagram)}
	}
	return c.measure(ctx, s)
}

const maxSlice = 10 * time.Second

// measure does the client's part.
func (c *perfCommand) measure(ctx context.Context, s *streams) error {
	if c.SVG != "" {
		if err := os.MkdirAll(c.SVG, 0o755); err != nil {
			return err
		}
	}
	client := newPerfClient(string(c.Address), c.Timeout)
	defer client.close()
	r := &perfReport{baseline: "tcp", timeout: c.Timeout}
	networks, workloads := c.Networks, perfStreams
	if c.Datagram {
		r.baseline = endpoint.Packets["tcp"]
		networks, workloads = eachNetwork(networks), r.datagramWorkload
	}
	var err error
	if r.Peers, r.PassedOver, err = client.find(ctx, networks); err != nil {
		return err
	}
	if c.Datagram {
		packetPeers(r.Peers)
	}
	if err := c.allowed(r.Peers, client.welcome); err != nil {
		return err
	}
	show := perf.NewProgress(s.err).OnlyOnTerminal()
	r.Begin()
	r.Rounds, r.Slice, r.Server = c.Rounds, c.Slice, client.welcome.Machine
	runner := &perf.Runner{Slice: c.Slice, Usage: client.usages, Note: show.Note}
	err = r.Measure(ctx, c.cells(r.Peers), func(cell perf.Cell) (perf.Sample, error) {
		return runner.Measure(ctx, cell, workloads(cell), client.dialer(cell.Peer))
	}, show, func() {})
	show.End()
	if err != nil {
		return err
	}
	r.finish()
	if c.SVG != "" {
		if err := r.draw(c.SVG, c.Sizes); err != nil {
			return err
		}
	}
	if s.json {
		err = writeJSON(s.out, r)
	} else {
		r.print(s.out)
		if c.SVG != "" {
			r.printCharts(s.out)
		}
	}
	return errors.Join(err, r.failure())
}

// perfStreams returns the workload of a cell of connections.
func perfStreams(cell perf.Cell) *perf.Workload {
	if cell.Workload == perf.PingPong.Key {
		return &perf.PingPong
	}
	return &perf.Stream
}

// cells are what to measure. Those that differ in the network alone are neighbours.
func (c *perfCommand) cells(peers []perf.Peer) (cells []perf.Cell) {
	for _, workload := range []string{perf.PingPong.Key, perf.Stream.Key} {
		for _, conns := range c.Connections {
			for _, size := range c.Sizes {
				for _, p := range peers {
					if p.Unavailable == "" {
						cells = append(cells, perf.Cell{Peer: p.Key, Workload: workload, Size: int(size), Conns: conns})
					}
				}
			}
		}
	}
	return cells
}

// overhead is about how many times its slice a cell takes in a round: it warms up first.
const overhead = 1.5

// allowed returns an error if the server does not allow what is asked for.
func (c *perfCommand) allowed(peers []perf.Peer, w perfWelcome) error {
	takes := time.Duration(float64(len(c.cells(peers))*c.Rounds) * overhead * float64(c.Slice)).Round(time.Second)
	switch size, conns := slices.Max(c.Sizes), slices.Max(c.Connections); {
	case int(size) > w.MaxSize:
		return fmt.Errorf("%s allows messages of %s at most, not of %s: see its --max-size", c.Address, perf.Size(w.MaxSize), perf.Size(int(size)))
	case conns > w.MaxConnections:
		return fmt.Errorf("%s allows %d connections at most, not %d: see its --max-connections", c.Address, w.MaxConnections, conns)
	case takes > w.MaxTime:
		return fmt.Errorf("this would take about %v, and %s allows %v: see its --max-time, or ask for less", takes, c.Address, w.MaxTime)
	}
	return nil
}

// perfClient is a client of ringnet perf --listen.
type perfClient struct {
	address string
	timeout time.Duration
	dials   map[string]dialFunc // by network, those of datagrams included; connections of one share links

	control endpoint.Conn // the visit's first connection, by which the server reports its usage; nil at first
	welcome perfWelcome   // the server's, on control
}

type dialFunc = func(context.Context) (endpoint.Conn, []ringnet.Reason, error)

func newPerfClient(address string, timeout time.Duration) *perfClient {
	c := &perfClient{address: address, timeout: timeout, dials: make(map[string]dialFunc)}
	for _, network := range []string{"auto", "shm", "rdma", "tcp"} {
		dial := endpoint.Endpoint{Network: network, Address: address}.Dialer(endpoint.Options{})
		c.dials[network] = dial
		if packets, ok := endpoint.Packets[network]; ok {
			c.dials[packets] = dial
		}
	}
	return c
}

// find finds out over which of the networks the server can be reached, and begins the
// visit. It replaces auto by the network that carries its connections, and returns the
// reasons why no better one does. If auto cannot connect, which it does not without TCP,
// find replaces it by those of shm and rdma that can.
func (c *perfClient) find(ctx context.Context, networks []string) (peers []perf.Peer, passed []reason, err error) {
	order := networks
	if slices.Contains(networks, "tcp") {
		order = append([]string{"tcp"}, networks...) // TCP is the best network to begin the visit over
	}
	known := func(network string) bool {
		return slices.ContainsFunc(peers, func(p perf.Peer) bool { return p.Key == network })
	}
	for ; len(order) > 0; order = order[1:] {
		network := order[0]
		if known(network) {
			continue
		}
		conn, reasons, err := c.connect(ctx, network)
		if errors.As(err, new(perfServerError)) {
			return nil, nil, fmt.Errorf("%s: %w", c.address, err)
		} else if err != nil {
			peers = append(peers, perf.Peer{Key: network, Name: network, Unavailable: err.Error()})
			if network == "auto" {
				order = slices.Concat(order, []string{"shm", "rdma"})
			}
			continue
		}
		carrier := endpoint.NetworkOf(conn)
		if !known(carrier) {
			peers = append(peers, perf.Peer{Key: carrier, Name: carrier})
		}
		for _, r := range reasons {
			passed = append(passed, newReason(r))
		}
		if c.control == nil {
			c.control = conn
		} else {
			_ = conn.Close()
		}
	}
	if c.control == nil {
		return nil, nil, fmt.Errorf("%s cannot be reached: %s", c.address, unavailable(peers))
	}
	if peers[0].Key == "tcp" {
		peers = append(peers[1:], peers[0])
	}
	return peers, passed, nil
}

func unavailable(peers []perf.Peer) string {
	var all []string
	for _, p := range peers {
		all = append(all, fmt.Sprintf("over %s: %s", p.Name, p.Unavailable))
	}
	return strings.Join(all, "; ")
}

// dialer returns a function that makes connections of the visit over a network.
func (c *perfClient) dialer(network string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		conn, _, err := c.connect(ctx, network)
		return conn, err
	}
}

// connect connects over a network. Its first connection begins the visit, and others join
// it.
func (c *perfClient) connect(ctx context.Context, network string) (endpoint.Conn, []ringnet.Reason, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, reasons, err := c.dials[network](ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := c.enter(conn); err != nil {
		endpoint.Reset(conn)
		return nil, nil, err
	}
	return conn, reasons, nil
}

// perfServerError is the error of a server that answers, and refuses or misbehaves.
type perfServerError struct{ error }

func (e perfServerError) Unwrap() error { return e.error }

// enter does the client's part of the handshake.
func (c *perfClient) enter(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(conn, maxPerfLine)
	line, err := lines.ReadSlice('\n')
	switch got := string(line); {
	case got == perfGreeting:
	case strings.HasPrefix(got, perfGreetingName):
		return perfServerError{fmt.Errorf("another version of ringnet perf is there, %s, and this is %s",
			endpoint.Printable(strings.TrimSpace(got[len(perfGreetingName):])), strings.TrimSpace(perfGreeting[len(perfGreetingName):]))}
	case got != "":
		return perfServerError{fmt.Errorf("want ringnet perf --listen there, which does not say %q", got[:min(len(got), 60)])}
	default:
		return fmt.Errorf("want ringnet perf --listen there, which would say so: %w", err)
	}
	if err := json.NewEncoder(conn).Encode(perfHello{Visit: c.welcome.Visit}); err != nil {
		return err
	}
	var w perfWelcome
	if err := readPerfLine(lines, &w); err != nil {
		return err
	}
	if w.Error != "" {
		return perfServerError{errors.New(endpoint.Printable(w.Error))}
	}
	if c.control == nil {
		c.welcome = w
	}
	return conn.SetDeadline(time.Time{})
}

// readPerfLine reads a line of JSON that the server has sent.
func readPerfLine(lines *bufio.Reader, v any) error {
	line, err := lines.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		return perfServerError{fmt.Errorf("an answer that is none: %w", err)}
	}
	return nil
}

// usages returns what both processes have used so far.
func (c *perfClient) usages() (client, server perf.Usage, err error) {
	err = errors.Join(
		c.control.SetDeadline(time.Now().Add(c.timeout)),
		perf.Request(c.control, perfUsage, 0, 0),
		binary.Read(c.control, binary.LittleEndian, &server))
	return perf.OwnUsage(), server, err
}

// close ends the visit, and returns when the server has noticed that.
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
