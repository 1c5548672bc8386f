package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

// ringnet perf --listen sends a greeting on each connection. The client sends a line of
// JSON, perfHello, which names the visit, and the server answers with another,
// perfWelcome. Then the client makes requests: those of package perf, perfUsage and
// perfDatagrams.
const (
	perfGreetingName = "ringnet perf "
	perfGreeting     = perfGreetingName + "1\n"

	maxPerfLine = 4 << 10 // bytes of a line

	// perfUsage is a request for what the server has used so far. The answer is a
	// perf.Usage, little endian.
	perfUsage = perf.FirstOwn
)

// perfHello begins a visit, or, with the name of a visit that has begun, adds a connection
// to it.
type perfHello struct {
	Visit string `json:"visit,omitempty"`
}

// perfWelcome is what the server allows the visit, or why it refuses it.
type perfWelcome struct {
	Error          string        `json:"error,omitempty"`
	Visit          string        `json:"visit,omitempty"`
	MaxSize        int           `json:"max_size,omitempty"` // bytes
	MaxConnections int           `json:"max_connections,omitempty"`
	MaxTime        time.Duration `json:"max_time,omitempty"` // nanoseconds
	Machine        perf.Machine  `json:"machine,omitzero"`
}

const (
	// perfHandshake is how long a client's part of the handshake may take.
	perfHandshake = 10 * time.Second

	// perfHandshakes is how many handshakes there may be at once.
	perfHandshakes = 64

	// perfPatience is how long a client may take for a request, and may make none. A
	// round of a cell with the longest --slice takes two thirds of it.
	perfPatience = 3 * time.Minute
)

// perfServer serves one visit at a time, so that its processor time is that visit's.
type perfServer struct {
	allows     perfWelcome // with neither visit nor error
	log        *slog.Logger
	handshakes chan struct{} // holds one for each handshake under way

	mu    sync.Mutex // guards visit
	visit *perfVisit // the last one, which may have ended, or nil
}

// perfVisit is a client's stay.
type perfVisit struct {
	context.Context // ends with the visit's first connection, or when it has lasted too long
	end             context.CancelFunc

	name, from string
	began      time.Time
	conns      chan struct{} // holds one for each connection besides the first
}

func (c *perfCommand) newServer(log *slog.Logger) *perfServer {
	return &perfServer{
		allows: perfWelcome{
			MaxSize: int(c.MaxSize), MaxConnections: c.MaxConnections, MaxTime: c.MaxTime,
			Machine: perf.ThisMachine(),
		},
		log:        log,
		handshakes: make(chan struct{}, perfHandshakes),
	}
}

// serve is the server, until ctx ends.
func (c *perfCommand) serve(ctx context.Context, s *streams) error {
	server := c.newServer(s.logger(false))
	listeners, err := listenBesideTCP(c.Listen.Endpoint, func(e endpoint.Endpoint) (endpoint.Listener, error) {
		return e.Listen(ctx, endpoint.Options{})
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server.log.Info("serves", "network", c.Listen.Network, "address", listeners[0].Addr().String())
	ended := make(chan error)
	for _, l := range listeners {
		go func() {
			err := acceptAll(ctx, l, server.log, server.serve)
			stop()
			ended <- err
		}()
	}
	var errs []error
	for range listeners {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// triedPorts is how many free ports of a network are tried for one that is also free on TCP.
const triedPorts = 16

// listenBesideTCP listens at an endpoint, and, if that does not include TCP, over TCP at
// the same address. If the port is left open, it is one that is free on both.
func listenBesideTCP(e endpoint.Endpoint, listen func(endpoint.Endpoint) (endpoint.Listener, error)) ([]endpoint.Listener, error) {
	if e.IsAuto() || !e.IsRingnet() {
		l, err := listen(e)
		return []endpoint.Listener{l}, err
	}
	_, port, _ := net.SplitHostPort(e.Address)
	open := port == "" || port == "0"
	for try := 1; ; try++ {
		listeners, err := listenOnBoth(e, listen)
		if err == nil || !open || !errors.Is(err, syscall.EADDRINUSE) || try == triedPorts {
			return listeners, err
		}
	}
}

func listenOnBoth(e endpoint.Endpoint, listen func(endpoint.Endpoint) (endpoint.Listener, error)) ([]endpoint.Listener, error) {
	l, err := listen(e)
	if err != nil {
		return nil, err
	}
	tcp, err := listen(endpoint.Endpoint{Network: "tcp", Address: l.Addr().String()})
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("TCP beside %s: %w", e.Network, err)
	}
	return []endpoint.Listener{l, tcp}, nil
}

// serve serves a connection to its end.
func (s *perfServer) serve(accepted net.Conn) {
	log := s.log.With("from", accepted.RemoteAddr().String())
	conn, err := endpoint.Options{}.Carried(accepted)
	if err != nil {
		log.Warn("cannot serve", "error", err)
		return
	}
	visit, leave, err := s.shakeHands(conn)
	if err != nil {
		log.Warn("refused", "error", err)
		return
	}
	defer leave()
	defer context.AfterFunc(visit, func() { endpoint.Reset(conn) })()
	messages := perf.MessageServer{
		MaxSize:  s.allows.MaxSize,
		Own:      map[int]func(net.Conn) error{perfUsage: tellUsage, perfDatagrams: serveDatagrams},
		Deadline: func() time.Time { return time.Now().Add(perfPatience) },
	}
	if err := messages.Serve(conn); err != nil && visit.Err() == nil {
		log.Warn("gave a connection up", "error", err)
		endpoint.Reset(conn)
	}
}

// tellUsage serves perfUsage.
func tellUsage(conn net.Conn) error {
	return binary.Write(conn, binary.LittleEndian, perf.OwnUsage())
}

// shakeHands does the server's part of the handshake. It returns the visit of the
// connection, and a function to call when the connection ends.
func (s *perfServer) shakeHands(conn net.Conn) (visit *perfVisit, leave func(), err error) {
	select {
	case s.handshakes <- struct{}{}:
		defer func() { <-s.handshakes }()
	default:
		return nil, nil, errors.New("too many handshakes at once")
	}
	if err := conn.SetDeadline(time.Now().Add(perfHandshake)); err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write([]byte(perfGreeting)); err != nil {
		return nil, nil, err
	}
	line, err := bufio.NewReaderSize(conn, maxPerfLine).ReadSlice('\n')
	if err != nil {
		return nil, nil, fmt.Errorf("no handshake: %w", err)
	}
	var hello perfHello
	if err := json.Unmarshal(line, &hello); err != nil {
		return nil, nil, fmt.Errorf("a handshake that is none: %w", err)
	}
	welcome := s.allows
	if hello.Visit == "" {
		visit, leave, err = s.begin(conn)
	} else {
		visit, leave, err = s.join(hello.Visit)
	}
	if err != nil {
		welcome = perfWelcome{Error: err.Error()}
	} else {
		welcome.Visit = visit.name
	}
	if told := json.NewEncoder(conn).Encode(welcome); err == nil && told != nil {
		leave()
		err = told
	}
	return visit, leave, err
}

// begin begins a visit, unless another one has not ended.
func (s *perfServer) begin(conn net.Conn) (visit *perfVisit, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.visit != nil && s.visit.Err() == nil {
		return nil, nil, fmt.Errorf("busy with %s for %v, and serves one client at a time", s.visit.from, time.Since(s.visit.began).Round(time.Second))
	}
	visit = &perfVisit{
		name: rand.Text(), from: conn.RemoteAddr().String(), began: time.Now(),
		conns: make(chan struct{}, s.allows.MaxConnections),
	}
	visit.Context, visit.end = context.WithTimeout(context.Background(), s.allows.MaxTime)
	s.visit = visit
	s.log.Info("a client has come", "from", visit.from, "over", endpoint.NetworkOf(conn))
	return visit, func() {
		visit.end()
		s.log.Info("the client has gone", "from", visit.from, "after", time.Since(visit.began).Round(time.Millisecond).String())
	}, nil
}

// join adds a connection to the visit that has begun. If the visit has as many as it may,
// join waits a while: the client may have closed some of them just now.
func (s *perfServer) join(name string) (visit *perfVisit, leave func(), err error) {
	s.mu.Lock()
	visit = s.visit
	s.mu.Unlock()
	if visit == nil || visit.name != name || visit.Err() != nil {
		return nil, nil, errors.New("this visit has ended: it may have lasted too long")
	}
	timeout := time.NewTimer(perfHandshake / 2)
	defer timeout.Stop()
	select {
	case visit.conns <- struct{}{}:
		return visit, func() { <-visit.conns }, nil
	case <-timeout.C:
		return nil, nil, fmt.Errorf("%d connections are there already", cap(visit.conns))
	case <-visit.Done():
		return nil, nil, errors.New("this visit has ended")
	}
}
