package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/logs"
	"github.com/ringnet/ringnet/internal/perf/report"
	"github.com/ringnet/ringnet/internal/perf/workload"
)

// A client of ringnet perf --listen begins each connection with a line: perfHello and a name of its
// own. The server answers with a line of JSON, perfWelcome. Then the client makes requests: those of
// package workload, and perfUsage.
const (
	perfHello   = "ringnet perf 2 "
	maxPerfLine = 4 << 10 // bytes of a line

	// perfUsage is a request for what the server has used so far. The answer is a
	// workload.Usage, little endian.
	perfUsage = workload.FirstOwn

	// perfHandshake is how long a client's part of the handshake may take.
	perfHandshake = 10 * time.Second

	// perfPatience is how long a client may take for a request, and may make none. A round of
	// a cell with the longest --slice takes a fraction of it.
	perfPatience = 3 * time.Minute
)

// perfWelcome says where the server runs, or why it refuses the connection.
type perfWelcome struct {
	Error   string         `json:"error,omitempty"`
	Machine report.Machine `json:"machine,omitzero"`
}

// perfServer serves one client at a time, so that its processor time is that client's.
type perfServer struct {
	log      *slog.Logger
	messages *workload.MessageServer

	mu     sync.Mutex // guards what follows
	client string     // the name of the one whose first connection has not ended; "" if there is none
	from   string     // its address
	conns  map[net.Conn]struct{}
}

// servePerf serves until ctx ends.
func servePerf(ctx context.Context, address hostPort, log *slog.Logger) error {
	s := newPerfServer(logs.Limit(log))
	return serveAuto(ctx, address, log, "serves", func(conn net.Conn) {
		if err := s.serve(conn); err != nil {
			s.log.Warn("gave a connection up", "from", conn.RemoteAddr().String(), "error", err)
			endpoint.Reset(conn)
		}
	})
}

func newPerfServer(log *slog.Logger) *perfServer {
	return &perfServer{log: log, conns: make(map[net.Conn]struct{}), messages: &workload.MessageServer{
		MaxSize:  maxPerfSize,
		Long:     16, // so that all connections together take 512 MiB for messages
		Own:      map[int]func(net.Conn) error{perfUsage: tellUsage},
		Deadline: func() time.Time { return time.Now().Add(perfPatience) },
	}}
}

// serve serves a connection to its end.
func (s *perfServer) serve(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(perfHandshake)); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, maxPerfLine).ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("no handshake: %w", err)
	}
	from := conn.RemoteAddr().String()
	leave, refused := s.enter(line, conn)
	if refused != nil {
		s.log.Warn("refused", "from", from, "error", refused)
		return json.NewEncoder(conn).Encode(perfWelcome{Error: refused.Error()})
	}
	defer leave()
	if err := json.NewEncoder(conn).Encode(perfWelcome{Machine: report.ThisMachine()}); err != nil {
		return err
	}
	return s.messages.Serve(conn)
}

// tellUsage serves perfUsage.
func tellUsage(conn net.Conn) error {
	return binary.Write(conn, binary.LittleEndian, workload.OwnUsage())
}

// enter counts a connection until leave is called, unless it is another client's turn. With its first connection
// a client's others end.
func (s *perfServer) enter(hello []byte, conn net.Conn) (leave func(), err error) {
	name, ok := bytes.CutPrefix(hello, []byte(perfHello))
	if !ok {
		return nil, errors.New("want a client of the same version of ringnet perf")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.client == ""
	switch {
	case !first && s.client != string(name):
		return nil, fmt.Errorf("busy with %s, and serves one client at a time", s.from)
	case len(s.conns) == 4*maxPerfConnections: // the server may not have noticed yet that others have ended
		return nil, fmt.Errorf("%d connections are there already", len(s.conns))
	case first:
		s.client, s.from = string(name), conn.RemoteAddr().String()
		s.log.Info("a client has come", "from", s.from)
	}
	s.conns[conn] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
		if first {
			s.client = ""
			for other := range s.conns {
				go endpoint.Reset(other) // which has no client any more
			}
		}
	}, nil
}
